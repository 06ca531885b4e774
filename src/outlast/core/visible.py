"""Text that people decide by: what would not be seen, or would steer what is seen, is written out.

A character that has no shape of its own can make a text read otherwise than it is sent: reversed by a mark
for right-to-left, cut by a line separator, told apart by nobody from another name.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})


def visible(text: str) -> str:
    """Write every character that has no shape as its number, such as ``\\u{202e}``; spaces and line ends
    stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in " \n" or unicodedata.category(char) not in _HIDDEN else f"\\u{{{ord(char):x}}}"
        for char in text
    )
