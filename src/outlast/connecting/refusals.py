"""Problem documents as the errors that apps raise in process."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final

from outlast.core import ids, values
from outlast.errors import (
    Conflict,
    InvalidKey,
    InvalidRequest,
    NotAllowed,
    NotFound,
    OutlastError,
    Unavailable,
    Unserializable,
    ValueTooLarge,
)


def _all(kind: type[OutlastError]) -> Iterator[type[OutlastError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _all(each)


_BY_CODE: Final = {
    **{kind.code: kind for kind in _all(OutlastError)},
    # Of the request as such, which apps in process never see.
    "unauthorized": NotAllowed,
    "forbidden": NotAllowed,
    "bad_json": InvalidRequest,
    "bad_request": InvalidRequest,
    "method_not_allowed": InvalidRequest,
    "not_acceptable": InvalidRequest,
    "unsupported_media_type": InvalidRequest,
    "body_too_large": ValueTooLarge,
    "stopping": Unavailable,
    "stream_overrun": Unavailable,
}
_BY_STATUS: Final = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    413: ValueTooLarge,
    429: Unavailable,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def refusal(status: int, headers: Mapping[str, str], text: str) -> OutlastError:
    """Make the error that a refusal stands for: by its code, else, where something between has answered, by
    its status."""
    document = _document(text)
    kind = _BY_CODE.get(document.get("code", ""))
    if kind is None:
        kind = _BY_STATUS.get(status, InvalidRequest if 400 <= status < 500 else OutlastError)
    said = document.get("detail") or document.get("title") or f"the service answered {status}"
    known = _members(document)
    wait = headers.get("retry-after", "")
    if wait.isascii() and wait.isdigit():
        known["retry_after"] = float(wait)
    maker: Any = kind
    asked = inspect.signature(maker.__init__).parameters.values()
    given = {one.name: known[one.name] for one in asked if one.name in known}
    # An error that has to say more than the document does says it empty.
    given |= {
        one.name: ""
        for one in asked
        if one.kind is one.KEYWORD_ONLY and one.default is one.empty and one.name not in given
    }
    made: OutlastError = kind(str(said), **given)
    return made


def _document(text: str) -> dict[str, Any]:
    try:
        found = values.decode(text)
    except (ValueError, Unserializable):
        return {}
    return found if isinstance(found, dict) else {}


def _members(document: dict[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {
        name: document[name] for name in ("state", "current", "revision") if name in document
    }
    recorded = document.get("approval")
    if isinstance(recorded, dict):
        known |= {"by": recorded.get("decided_by") or "", "current": recorded.get("fingerprint", "")}
    problems = [
        (str(one.get("pointer", "")), str(one.get("detail", ""))) for one in document.get("errors", ())
    ]
    if problems:
        known |= {"problems": tuple(problems), "pointer": problems[0][0]}
    if "operations" in document:
        known["keys"] = tuple(_key(each) for each in document["operations"])
    return known


def _key(operation: str) -> str:
    try:
        return ids.split_operation_id(operation)[1]
    except InvalidKey:
        return operation
