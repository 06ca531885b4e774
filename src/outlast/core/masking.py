"""Taking passwords out of texts that people and logs get to see."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["mask_passwords"]

_IN_URL: Final = re.compile(r"(://[^/\s:@]*:)[^\s/]*@")
_IN_QUERY: Final = re.compile(r"(\b\w*password\w*=)[^\s&\"']+", re.IGNORECASE)


def mask_passwords(text: str) -> str:
    """Answer the text with every password of a URL replaced by ``***``: after the user, or in the query."""
    if "@" in text:
        text = _IN_URL.sub(r"\1***@", text)
    return _IN_QUERY.sub(r"\1***", text) if "=" in text else text
