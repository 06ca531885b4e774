"""The HTTP API: routes over the calls of ``Outlast``, problem documents, event streams, keys.

Routes hold no rules and no SQL; what is accepted and refused is decided below, and one table says with which
status a refusal is answered.
"""

from outlast.server.app import create_app

__all__ = ["create_app"]
