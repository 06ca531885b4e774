"""Arrays as the text that a flush sends: the server reads them back as they were."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.store.postgres.batches import texts

HOSTILE = (
    "", " ", "NULL", "null", '"', "\\", '\\"', '"\\', "a,b", '","', "{}", "{a}", "it's", "\n\t\r\x01",
    "ünïcödé 🦔", '{"a": "b\\n\\u0000c"}', "trailing\\", '"quoted"',
)  # fmt: skip


@pytest.mark.parametrize(
    "column",
    [
        HOSTILE,
        *[(item,) for item in HOSTILE],
        (None,),
        (None, None),
        (*HOSTILE, None, "NULL"),
        ("a", "b", None),
        ("plain", "words", ""),
    ],
    ids=repr,
)
async def test_texts_come_back_as_they_were(beside: Any, column: tuple[str | None, ...]) -> None:
    assert tuple(await beside.fetchval("select $1::text::text[]", texts(column))) == column
