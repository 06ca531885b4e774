"""The pages as a whole: every link leads somewhere, every page can be reached, every word is ours."""

from __future__ import annotations

import re

import pytest
from tests.docs.blocks import ROOT, Page, page, pages

from docs import generate

PAGES = pages()
NOT_OURS = re.compile(r"\b(jobs?|workflows?|executions?)\b", re.IGNORECASE)
"""Words for tasks and attempts that the house does not use."""


def _name(page: Page) -> str:
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links():
        if link.startswith(("https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.path.parent / path).resolve() if path else page.path
        assert target.exists(), f"{page.name} leads to {link}"
        if anchor:
            assert anchor in Page(target).anchors(), f"{page.name} leads to {link}"


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    seen, ahead = set(), [index]
    while ahead:
        here = ahead.pop()
        if here in seen or here.suffix != ".md" or ROOT / "docs" not in here.parents:
            continue
        seen.add(here)
        for link in Page(here).links():
            path = link.partition("#")[0]
            if path and "://" not in path:
                target = (here.parent / path).resolve()
                ahead.append(target / "README.md" if target.is_dir() else target)
    assert {each.path for each in PAGES if each.path.parent != ROOT} - seen == set()
    assert "docs/" in page("README.md").links()


@pytest.mark.parametrize("page", [each for each in PAGES if each.name.startswith("docs/")], ids=_name)
def test_words_are_ours(page: Page) -> None:
    found = NOT_OURS.findall(page.prose)
    assert not found, f"{page.name}: {found}"
    assert page.text.startswith("# "), f"{page.name} has no title"


@pytest.mark.parametrize("page", [each for each in PAGES if generate.parts(each.text)], ids=_name)
def test_generated_parts_are_up_to_date(page: Page) -> None:
    assert generate.filled(page.text) == page.text, f"{page.name}: run python -m docs.generate"


def test_every_generated_part_is_shown_once() -> None:
    shown = [part for each in PAGES for part in generate.parts(each.text)]
    assert sorted(shown) == sorted(generate.PARTS)
