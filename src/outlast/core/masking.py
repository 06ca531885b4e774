"""Taking passwords out of texts that people and logs get to see."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["mask_passwords"]

# A password may hold a slash that should have been written otherwise; what begins as a port does is none.
_IN_URL: Final = re.compile(r"(://(?!\[)[^/\s:@]*:)(?:[^\s/]*|(?!\d{1,5}/)[^\s]{0,2048})@")
_TOKEN: Final = re.compile(r"(/(?:v1/callbacks|approve)/)[A-Za-z0-9_-]{8,}")
_SIGNING: Final = re.compile(r"\bwhsec_[A-Za-z0-9+/=_-]+")
_IN_QUERY: Final = re.compile(r"(\b\w*password\w*=)[^\s&\"']+", re.IGNORECASE)


def mask_passwords(text: str) -> str:
    """Answer the text with every password of a URL replaced by ``***``: after the user, or in the query.

    So are the tokens that callbacks and approval links end with, and what callbacks are signed with: whoever
    has one needs no password.
    """
    if "@" in text:
        text = _IN_URL.sub(r"\1***@", text)
    if "/callbacks/" in text or "/approve/" in text:
        text = _TOKEN.sub(r"\1***", text)
    if "whsec_" in text:
        text = _SIGNING.sub("whsec_***", text)
    return _IN_QUERY.sub(r"\1***", text) if "=" in text else text
