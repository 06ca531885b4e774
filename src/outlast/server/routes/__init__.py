"""One file a resource; no rules and no SQL."""
