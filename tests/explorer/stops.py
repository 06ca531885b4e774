"""Stops inside PL/pgSQL functions: a place to be halted at before every statement that touches rows or locks.

Under READ COMMITTED each statement of a function sees what was committed before it began, so that what can be
interleaved with another session are its statements, not its call. ``with_stops`` puts a call of
``explorer.stop`` before each of them, from outside: the functions that are shipped have none. It is an
assignment, which leaves ``found`` alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

_TOKEN = re.compile(
    r"--[^\n]*|'(?:[^']|'')*'|\"[^\"]*\"|[A-Za-z_#][A-Za-z0-9_$]*|\d[\w.]*|:=|\s+|.", re.DOTALL
)
_RETURN = re.compile(r"return\b(?!\s+(?:query|next)\b)", re.IGNORECASE)


@dataclass(frozen=True)
class _Token:
    text: str
    start: int
    depth: int

    @property
    def word(self) -> str:
        return self.text.lower()


def _tokens(source: str) -> Iterator[_Token]:
    """Answer tokens without blanks and comments; depth counts parentheses, brackets and ``case … end``."""
    depth = 0
    for found in _TOKEN.finditer(source):
        text = found.group()
        if text.isspace() or text.startswith("--"):
            continue
        if text in ")]":
            depth -= 1
        yield _Token(text, found.start(), depth)
        if text in "([":
            depth += 1


@dataclass(frozen=True)
class Statement:
    """A statement of a function: where it begins and ends in the source."""

    start: int
    end: int


def statements(source: str) -> Iterator[Statement]:
    """Answer the statements before which a function can be halted, in the order of the text.

    source: the body of a PL/pgSQL function. Of what has statements inside (``if``, loops) the head counts as
    one; ``elsif`` cannot be halted before.
    """
    tokens = list(_tokens(source))
    at = next(n for n, token in enumerate(tokens) if token.word == "begin") + 1
    while at < len(tokens):
        token = tokens[at]
        word = token.word
        if word in ("begin", "else", "loop", "exception"):
            at += 1
        elif word == "end":
            at = _behind(tokens, at, ";") if ";" in [one.text for one in tokens[at:]] else len(tokens)
        elif word in ("if", "elsif", "when"):
            end = _behind(tokens, at, "then")
            if word == "if":
                yield Statement(token.start, tokens[end - 1].start)
            at = end
        elif word in ("for", "while"):
            end = _behind(tokens, at, "loop")
            yield Statement(token.start, tokens[end - 1].start)
            at = end
        else:
            assert word != "case", "a CASE statement is not known here"
            end = _behind(tokens, at, ";")
            yield Statement(token.start, tokens[end - 1].start)
            at = end


@cache
def conditions(source: str) -> tuple[str, ...]:
    """Answer the conditions of a function that it cannot be halted before: those of ``elsif``."""
    tokens = list(_tokens(source))
    return tuple(
        source[token.start : tokens[_behind(tokens, at, "then") - 1].start]
        for at, token in enumerate(tokens)
        if token.word == "elsif"
    )


def _behind(tokens: list[_Token], at: int, end: str) -> int:
    """Answer the place behind the first of these words that belongs to the statement itself."""
    depth, cases = tokens[at].depth, 0
    for n in range(at, len(tokens)):
        token = tokens[n]
        if token.depth != depth:
            continue
        if token.word == "case":
            cases += 1
        elif token.word == "end" and cases and n > at:
            cases -= 1
        elif token.word == end and not cases:
            return n + 1
    raise ValueError(f"no {end} behind {tokens[at].text} at {tokens[at].start}")


@cache
def with_stops(name: str, source: str, touches: re.Pattern[str], *, last: bool) -> str:
    """Put a stop before every statement of a function's body that touches what others can see.

    touches: finds a table, a lock, or a function that has no stops of its own. last: whether there is one
    more before its end, where all is done and nothing is committed.
    """
    made, done, number = [], 0, 0

    def put(at: int, text: str) -> None:
        nonlocal done
        made.append(source[done:at])
        made.append(text)
        done = at

    def stop(at: int) -> None:
        nonlocal number
        number += 1
        put(at, f"halted_at := explorer.stop('{name} {number}'); ")

    found = list(statements(source))
    head = re.search(r"^(?:declare|begin)\b", source, re.MULTILINE)
    assert head is not None
    declares = head.group() == "declare"
    put(head.end() if declares else head.start(), f"{'' if declares else 'declare'} halted_at text; ")
    for one in found:
        text = source[one.start : one.end]
        if touches.search(_bare(text)) or (last and _RETURN.match(text)):
            stop(one.start)
    tail = source[found[-1].end :]
    returns = _RETURN.match(source, found[-1].start) and re.fullmatch(r";\s*end\s*;?\s*", tail)
    if last and not returns:
        stop(found[-1].end + tail.rindex("end"))
    return "".join([*made, source[done:]])


def _bare(text: str) -> str:
    """Take comments and strings away."""
    return re.sub(r"--[^\n]*|'(?:[^']|'')*'", " ", text)


_STOP_AT = re.compile(r"halted_at := explorer\.stop\('(\w+ \d+)'\)")
_STOP = re.compile(r"halted_at := explorer\.stop\('[^']*'\); ")


def behind(source: str, place: int) -> str:
    """Answer the text from a stop to the next, without comments: the place counts from 1."""
    return re.sub(r"--[^\n]*", "", _STOP.split(source)[place])


@cache
def told(source: str) -> tuple[str, ...]:
    """Answer the statement that each stop stands before, in one line; of what has statements inside its
    head."""
    found = [source[one.start : one.end] for one in statements(source)]
    behind_stop = {
        _STOP_AT.findall(text)[0]: following
        for text, following in itertools.zip_longest(found, found[1:], fillvalue="end")
        if _STOP_AT.match(text)
    }
    return tuple(
        " ".join(re.sub(r"--[^\n]*", "", behind_stop[number]).split()) for number in _STOP_AT.findall(source)
    )
