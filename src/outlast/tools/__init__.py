"""What tool bodies use to reach the outside, and what their endings mean.

``call`` is the context that a body gets, ``http`` the client in it, ``classify`` the table that turns answers
and exceptions into outcomes.
"""
