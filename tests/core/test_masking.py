"""Passwords are taken out of texts, and nothing else."""

from __future__ import annotations

import pytest

from outlast.core.masking import mask_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:s3cret@db:5432/x", "postgresql://me:***@db:5432/x"),
        ("no postgresql://:s3:cr@et@db/x here", "no postgresql://:***@db/x here"),
        ("postgresql://db/x?user=me&password=s3cret&ssl=on", "postgresql://db/x?user=me&password=***&ssl=on"),
        ("host=db sslpassword=s3cret user=me", "host=db sslpassword=*** user=me"),
        ("two: http://a:1@b/ and http://c:2@d/", "two: http://a:***@b/ and http://c:***@d/"),
        ("no postgresql://me:s3/cr#et?@db:5432/x here", "no postgresql://me:***@db:5432/x here"),
        (
            "see http://localhost:8700/v1/of/ada@example.org",
            "see http://localhost:8700/v1/of/ada@example.org",
        ),
        ("see http://[::1]:8700/v1/of/ada@example.org", "see http://[::1]:8700/v1/of/ada@example.org"),
        ("mail ada@example.org at 10:30", "mail ada@example.org at 10:30"),
        ("POST https://x/v1/callbacks/WzE3_-k9QQ: 202", "POST https://x/v1/callbacks/***: 202"),
        ("see http://x/approve/WzE3OTYwNjY?a=1", "see http://x/approve/***?a=1"),
        ("signed with whsec_5W0N/MLZ+8A= here", "signed with whsec_*** here"),
        ("nobody wants to /approve/ it", "nobody wants to /approve/ it"),
        ("/v1/callbacks/{token}", "/v1/callbacks/{token}"),
        ("http://localhost:8700/v1/tasks", "http://localhost:8700/v1/tasks"),
        ("a = 1", "a = 1"),
        ("", ""),
    ],
)
def test_masking(text: str, shown: str) -> None:
    assert mask_passwords(text) == shown
