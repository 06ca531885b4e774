"""Duties that nobody asks for, one a file; every process does them, the store lets one at a time."""
