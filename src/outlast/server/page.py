"""The page that an approval link opens: what will be done, and a form to decide on it.

Everything that comes from a task is escaped, and what would not be seen is written out. The page loads
nothing, runs nothing, and can be framed by nobody.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fastapi import Response

from outlast.core.visible import visible
from outlast.linking import Holder
from outlast.server.schemas.fields import written
from outlast.views import ApprovalView

STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; }
dt { opacity: .7; }
dd { margin: 0; overflow-wrap: anywhere; }
pre { border: 1px solid; padding: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.note { border-left: .3rem solid; padding-left: .8rem; font-weight: 600; }
textarea { width: 100%; box-sizing: border-box; font: inherit; }
label { display: block; margin: .6rem 0; }
button { font: inherit; padding: .4rem 1.2rem; margin-right: .6rem; }
"""
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; base-uri 'none';"
        " frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex, nofollow, noarchive",
}
SAID: Final = {
    "pending": "Nobody has decided yet.",
    "approved": "It is approved.",
    "rejected": "It is rejected. Nothing was sent.",
    "expired": "Its time is over, and nobody decided. Nothing was sent.",
    "withdrawn": "It was withdrawn: this is not going to be done any more, or was asked about anew.",
    "used": "It was approved, and the call was made under this decision.",
}


def notice(title: str, text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Answer a page with nothing but a text."""
    return _page(title, f"<p class=note>{_text(text)}</p>", status, headers)


def approval_page(
    view: ApprovalView, holder: Holder, form: str | None, *, status: int = 200, note: str = ""
) -> Response:
    """Answer the page of an approval. form: what a decision sends back, None where there is none to take."""
    question = view.subject == "question"
    title = "A question to you" if question else f"May {view.name} be called?"
    parts = [f"<p class=note>{_text(note)}</p>" if note else "", *_body(view, question=question)]
    if form is not None:
        parts += _form(view, holder, form, question=question)
    return _page(title, "\n".join(parts), status)


def _body(view: ApprovalView, *, question: bool) -> Iterator[str]:
    shown = view.shown
    yield f"<p>{_text(view.reason)}</p>"
    if question:
        for name in ("choices", "form"):
            if shown.get(name) is not None:
                yield f"<p>{'May be answered' if name == 'choices' else 'The answer has to fit'}:</p>"
                yield _json(shown[name])
    else:
        yield "<p>Exactly this will be sent:</p>"
        yield _json(shown["arguments"])
        if shown.get("target") is not None:
            yield "<p>To this, as it stands in this version:</p>"
            yield _json(shown["target"])
    facts: list[tuple[str, Any]] = [
        ("State", SAID[view.state]),
        ("Decided by", view.decided_by),
        ("At", written(view.decided_at)),
        ("Because", view.decision_reason),
        ("Agreed so far", f"{view.votes} of {view.quorum}" if view.quorum > 1 else None),
        ("Changed", "an approver has changed the arguments" if view.edited else None),
    ]
    if not question:
        facts += [
            ("Tool", f"{view.name}, version {shown.get('version')}"),
            ("Effect", shown.get("effect")),
            ("About", shown.get("business_key")),
        ]
    facts += [
        ("Asked for", view.requester),
        ("Task", view.task),
        ("Until", written(view.expires_at)),
        ("Fingerprint", view.fingerprint),
    ]
    rows = "".join(f"<dt>{name}</dt><dd>{_text(str(value))}</dd>" for name, value in facts if value)
    yield f"<dl>{rows}</dl>"
    if view.state in ("approved", "used") and question:
        yield f"<p>The answer:</p>{_json(view.answer)}"


def _form(view: ApprovalView, holder: Holder, form: str, *, question: bool) -> Iterator[str]:
    yield f'<form method="post"><input type="hidden" name="form" value="{html.escape(form)}">'
    yield f"<p>You decide as <strong>{_text(holder.to)}</strong>.</p>"
    if question:
        choices = view.shown.get("choices")
        if choices is not None:
            for number, choice in enumerate(choices):
                yield (
                    f'<label><input type="radio" name="choice" value="{number}"> '
                    f"{_text(choice if isinstance(choice, str) else _pretty(choice))}</label>"
                )
        else:
            how = "Your answer" + (", as JSON" if view.shown.get("form") is not None else "")
            yield f'<label>{how}<textarea name="answer" rows="4"></textarea></label>'
    yield "<label>Why (kept with the decision)"
    yield '<textarea name="reason" rows="2" maxlength="2000"></textarea></label>'
    yes = ("answer", "Answer") if question else ("approve", "Approve")
    no = "Refuse to answer" if question else "Reject"
    yield f'<button name="verdict" value="{yes[0]}">{yes[1]}</button>'
    yield f'<button name="verdict" value="reject">{no}</button></form>'


def _page(title: str, body: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    text = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="robots" content="noindex, nofollow">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{_text(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )
    return Response(text, status, {**HEADERS, **(headers or {})}, "text/html; charset=utf-8")


def _json(value: Any) -> str:
    return f"<pre>{_text(_pretty(value))}</pre>"


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _text(text: str) -> str:
    return html.escape(visible(text))
