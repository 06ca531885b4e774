"""Write the parts of the reference that the code itself knows: ``python -m docs.generate``.

A part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. A test fails while a page holds
another text than this module makes, so that a table cannot outlive what it describes.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from docs.prove import schedules, storms
from docs.prove.kept import Kept
from typer.main import get_command

import outlast
from outlast import errors, ledger, linking, posting, probes, submitting, telemetry
from outlast import views as views_
from outlast.alone import Ledger
from outlast.app import Operations, Outlast, Pauses, Schedules
from outlast.approvals import Approvals, Rules
from outlast.cli.failing import EXIT_CODES
from outlast.cli.main import command_line
from outlast.connecting import Client
from outlast.core import ids, jsontext, operation, outcome, schedule, transitions, values, webhooks
from outlast.core.approval import MAX_SHOWN_BYTES, Allow, Ask, Deny
from outlast.drills.storm import report
from outlast.engine import finding, wording
from outlast.engine.children import Child
from outlast.engine.context import TaskContext
from outlast.engine.declaring import ToolOptions
from outlast.engine.settings import WorkerSettings
from outlast.engine.waits import Callback
from outlast.gateway import refusals as gateway_refusals
from outlast.handle import TaskHandle
from outlast.observability.logs import event_name
from outlast.otherside import problems as refusals
from outlast.server import create_app, reading
from outlast.server.problem import PROBLEMS
from outlast.settings import Settings
from outlast.store.posting import MAX_INBOX, CancelReply, Posted
from outlast.streams import tail
from outlast.testing.simulation import coverage
from outlast.tools import http
from outlast.tools.call import ToolCall
from outlast.tools.classify import rows

DAY_US: Final = 86_400_000_000
PARTS: dict[str, Callable[[], str]] = {}
"""Every generated part by its name."""

_PART: Final = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def part(function: Callable[[], str]) -> Callable[[], str]:
    """Register a part under its function's name."""
    PARTS[function.__name__.replace("_", "-")] = function
    return function


def parts(text: str) -> list[str]:
    """Answer the names of the generated parts in a page."""
    return [match[2] for match in _PART.finditer(text)]


def filled(text: str) -> str:
    """Answer a page with its generated parts as they should be."""
    return _PART.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]().strip()}\n\n{match[3]}", text)


def table(head: Sequence[str], body: Iterable[Sequence[object]]) -> str:
    """Write a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    for row in body:
        cells = [escaped(str(cell)).replace("|", "\\|").replace("\n", " ") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Keep what looks like HTML outside of code from being taken for it."""
    pieces = text.split("`")
    return "`".join(
        piece if number % 2 else piece.replace("<", "&lt;") for number, piece in enumerate(pieces)
    )


def code(text: object) -> str:
    """Write a name as code, nothing as nothing."""
    return f"`{text}`" if text not in (None, "") else ""


def prose(docstring: str | None) -> str:
    """Write a docstring as Markdown: one line a paragraph, its literals as code."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(docstring or ""))
    return "\n\n".join(" ".join(each.split()) for each in paragraphs).replace("``", "`")


def first(docstring: str | None) -> str:
    """Answer the first paragraph of a docstring."""
    return prose(docstring).split("\n\n")[0]


def described(docstring: str | None, names: Sequence[str]) -> dict[str, str]:
    """Read ``name: what it means.`` of these names from a docstring."""
    alternatives = "|".join(map(re.escape, names))
    found = re.split(rf"\b({alternatives}): ", prose(docstring).replace("\n\n", " "))
    return dict(zip(found[1::2], (text.strip().rstrip(".") for text in found[2::2]), strict=True))


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


def _public_errors() -> Iterator[type[errors.OutlastError]]:
    for name in errors.__all__:
        kind = getattr(errors, name)
        if issubclass(kind, errors.OutlastError):
            yield kind
    yield tail.Overrun


@part
def error_codes() -> str:
    """Every public error with its code, status and exit code."""
    return table(
        ["code", "class", "HTTP status", "exit code", "meaning"],
        [
            (
                code(kind.code), code(kind.__name__), PROBLEMS[kind.code][0], EXIT_CODES[kind.code],
                first(kind.__doc__).rstrip("."),
            )
            for kind in sorted(_public_errors(), key=lambda kind: kind.code)
        ],
    )  # fmt: skip


@part
def problem_codes() -> str:
    """The codes that only the HTTP layer has."""
    known = {kind.code for kind in _public_errors()}
    return table(
        ["code", "HTTP status", "title"],
        [(code(name), status, title) for name, (status, title) in PROBLEMS.items() if name not in known],
    )


@part
def otherside_problems() -> str:
    """The codes of the middleware."""
    return table(
        ["code", "HTTP status", "title"],
        [(code(name), status, title) for name, (status, title) in refusals.PROBLEMS.items()],
    )


@part
def gateway_problems() -> str:
    """The codes of the gateway."""
    return table(
        ["code", "HTTP status", "`Outlast-Gateway`", "title"],
        [
            (code(name), status, code(verdict), title)
            for name, (status, verdict, title) in gateway_refusals.PROBLEMS.items()
        ],
    )


# ── outcomes and states ──────────────────────────────────────────────────────────────────────────


@part
def outcomes() -> str:
    """What each answer, or the lack of one, means."""
    return table(
        ["seen", "outcome", "tried again", "why"],
        [(code(row.seen), row.outcome, "yes" if row.retryable else "", row.why) for row in rows()],
    )


@part
def failure_kinds() -> str:
    """The kinds of failure, with the comments beside them."""
    source = inspect.getsource(outcome)
    found = re.findall(r'^    "(\w+)",  # (.*)$', source, re.MULTILINE)
    return table(["kind", "meaning"], [(code(name), meaning) for name, meaning in found])


@part
def after_unknown() -> str:
    """What each effect class allows after an unknown."""
    return table(
        ["`effect=`", "called again", "`find` is asked", "sent again with the same key"],
        [
            (code(name), *("yes" if each else "no" for each in dataclasses.astuple(rule)))
            for name, rule in operation.AFTER_UNKNOWN.items()
        ],
    )


def _diagram(machine: transitions.Machine) -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {machine.states[0]}"]
    moves: dict[tuple[str, str], list[str]] = {}
    for (state, command), target in machine.moves.items():
        moves.setdefault((state, target), []).append(command)
    lines += [f"    {state} --> {to}: {', '.join(commands)}" for (state, to), commands in moves.items()]
    lines += [f"    {state} --> [*]" for state in machine.states if state in machine.final]
    return "\n".join([*lines, "```"])


@part
def task_states() -> str:
    """The task's machine."""
    return _diagram(transitions.TASK)


@part
def attempt_states() -> str:
    """The attempt's machine."""
    return _diagram(transitions.ATTEMPT)


@part
def operation_states() -> str:
    """The operation's machine."""
    return _diagram(transitions.OPERATION)


# ── probes and telemetry ─────────────────────────────────────────────────────────────────────────


@part
def probe_points() -> str:
    """The catalogue of named points."""
    return table(["point", "what is true there"], [(code(k), v) for k, v in probes.POINTS.items()])


@part
def telemetry_records() -> str:
    """The catalogue of what a process says about itself."""
    kinds = [kind for kind in vars(telemetry).values() if inspect.isclass(kind)]
    return table(
        ["log line", "fields", "meaning"],
        [
            (
                code(event_name(kind)), ", ".join(code(field.name) for field in dataclasses.fields(kind)),
                prose(kind.__doc__).rstrip("."),
            )
            for kind in kinds
            if issubclass(kind, telemetry.Signal) and kind is not telemetry.Signal
        ],
    )  # fmt: skip


# ── settings and limits ──────────────────────────────────────────────────────────────────────────


@part
def worker_settings() -> str:
    """The fields of WorkerSettings with their defaults."""
    fields = dataclasses.fields(WorkerSettings)
    meaning = described(WorkerSettings.__doc__, [field.name for field in fields]) | {
        "name": "a label for people",
        "batch_entries": "most journal entries in one transaction",
        "batch_bytes": "about so many bytes in one transaction",
    }
    return table(
        ["field", "default", "meaning"],
        [(code(f.name), code(repr(f.default)), meaning[f.name]) for f in fields],
    )


@part
def settings() -> str:
    """The variables that the service and the command line read."""
    fields = Settings.model_fields
    meaning = described(Settings.__doc__, list(fields)) | {"slots": "tasks that a worker runs at once"}
    return table(
        ["variable", "default", "meaning"],
        [
            (
                code(f"OUTLAST_{name.upper()}"),
                "" if name in ("api_keys", "secret") else code(field.default),
                meaning[name],
            )
            for name, field in fields.items()
        ],
    )  # fmt: skip


@part
def limits() -> str:
    """Every bound that a caller can meet."""
    names = f"{ids.MAX_NAME_CHARS} of letters, digits and `_ - . : /`"
    body = f"{Settings.model_fields['max_body_bytes'].default:,} bytes (`OUTLAST_MAX_BODY_BYTES`)"
    bounds: list[tuple[str, object, str]] = [
        ("a stored value (input, result, arguments, data)", f"{values.MAX_VALUE_BYTES:,} bytes as JSON",
         "`value_too_large`"),
        ("levels of objects and arrays in one another", jsontext.MAX_DEPTH, "`unserializable`"),
        ("digits of an integer", f"{values.MAX_INTEGER_DIGITS:,}", "`unserializable`"),
        ("an idempotency key, a business key, a user, a reason, a person's name",
         f"{ids.MAX_KEY_CHARS} characters, no control characters", "`invalid_key`"),
        ("an operation's key", f"{ids.MAX_OPERATION_KEY_CHARS} printable ASCII characters", "`invalid_key`"),
        ("a name of an agent, tool, pool, tenant or version", names, "`invalid_key`"),
        ("a priority", "-1000 to 1000", "`invalid_request`"),
        ("a length of time", "a hundred years", "`invalid_request`"),
        ("a schedule's interval", f"{schedule.MIN_EVERY_US // 1_000_000} s to a hundred years",
         "`invalid_schedule`"),
        ("a schedule's id", f"{ids.MAX_NAME_CHARS} of letters, digits and `_ - . :`", "`invalid_key`"),
        ("a cron line", f"{schedule.MAX_CRON_CHARS} characters", "`invalid_schedule`"),
        ("missed firings that are made up for", f"{schedule.MAX_MISSED:,} (`max_missed`, 100)",
         "the oldest are dropped, with a note"),
        ("requests of `submit_many` in one transaction",
         f"{submitting.GROUP:,}, or {submitting.GROUP_BYTES:,} bytes of input", "the next transaction"),
        ("signals that lie before a task and are not taken", f"{MAX_INBOX:,}", "`inbox_full`"),
        ("what people are shown of a call", f"{MAX_SHOWN_BYTES:,} bytes", "`approval_denied`"),
        ("the reason of a decision or a cancel", f"{posting.MAX_REASON:,} characters", "`invalid_request`"),
        ("how long an approval link stands", f"{linking.LONGEST_US // DAY_US} days", "`invalid_request`"),
        ("clocks of a callback's signer and ours", f"{webhooks.TOLERANCE_S} s apart", "`invalid_signature`"),
        ("the text of a recorded error", f"{wording.MAX_ERROR_TEXT:,} characters", "cut"),
        ("one question of `find`", f"{finding.FIND_TIMEOUT_S:g} s, or the tool's timeout", "no evidence"),
        ("the body of an answer to `call.http`", f"{http.MAX_ANSWER_BYTES:,} bytes (`max_bytes=`)",
         "unknown, when the call was done"),
        ("the body of an HTTP request", body, "`body_too_large`"),
        ("`Prefer: wait`", f"{reading.MAX_WAIT_S} s", "shortened"),
        ("events kept for a follower that does not read",
         f"{tail.BUFFER:,}, or {tail.BUFFER_BYTES:,} bytes of their data",
         "`stream_overrun`; resume after the last number"),
    ]  # fmt: skip
    return table(["what", "bound", "over it"], bounds)


# ── the command line ─────────────────────────────────────────────────────────────────────────────


@part
def commands() -> str:
    """Every command with its options."""
    return "\n\n".join(_commands(get_command(command_line()), ("outlast",)))


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _commands(inner, (*path, name))
        return
    text, _, example = prose(command.help).partition("Example: ")
    yield f"### `{' '.join(path)}`"
    yield text.strip()
    if example:
        yield f"```console\n{example.strip()}\n```"
    context = command.context_class(command)
    rows = []
    for each in command.params:
        shown = each.metavar or each.name.upper() if each.param_type_name == "argument" else ""
        names = [shown] if shown else [*each.opts, *each.secondary_opts]
        kind = each.display_type(context).strip("<>").replace(" range", "").replace("|", " or ")
        default = "" if each.default in (None, False) else code(each.default)
        rows.append(
            (
                ", ".join(map(code, names)),
                "" if kind == "bool" else kind,
                default,
                (each.help or "").rstrip("."),
            )
        )
    yield table(["argument or option", "type", "default", "meaning"], rows)


# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────

_EVERYWHERE: Final = frozenset({"401", "403", "500"})


@part
def routes() -> str:
    """Every route of the HTTP API."""
    api = create_app(Outlast("docs"), Settings(api_keys="")).openapi()  # type: ignore[arg-type]
    written = []
    for path, methods in api["paths"].items():
        for method, route in methods.items():
            written += [f"### `{method.upper()} {path}`", prose(route["description"])]
            if rows := list(_inputs(api, route)):
                written.append(table(["input", "in", "meaning"], rows))
            answers = [
                (status, answer["description"].replace("Successful Response", "As asked"))
                for status, answer in sorted(route["responses"].items())
                if status not in _EVERYWHERE and answer["description"] != "Validation Error"
            ]
            written.append(table(["status", "when"], answers))
    return "\n\n".join(written)


def _inputs(api: dict[str, Any], route: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for each in route.get("parameters", ()):
        name = each["name"].title() if each["in"] == "header" else each["name"]
        yield code(name), each["in"], each.get("description", "").rstrip(".")
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if body:
        if "$ref" not in body:
            yield "the body", "body", body.get("description", "").rstrip(".")
            return
        schema = api["components"]["schemas"][body["$ref"].rpartition("/")[2]]
        for name, field in schema["properties"].items():
            needed = "body, required" if name in schema.get("required", ()) else "body"
            yield code(name), needed, field.get("description", "").rstrip(".")


# ── Python ───────────────────────────────────────────────────────────────────────────────────────


def _signature(name: str, function: Any) -> str:
    if isinstance(function, property):
        return f"`{name}`"
    signature = inspect.signature(function)
    shown = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    if shown and shown[0].name in ("self", "cls"):
        shown = shown[1:]
    # A type's representation differs between versions of Python; annotations are for the editor.
    return f"`{name}{signature.replace(parameters=shown, return_annotation=inspect.Signature.empty)}`"


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    members = {name: member for each in reversed(kind.__mro__[:-1]) for name, member in vars(each).items()}
    for name, member in members.items():
        public = not name.startswith("_")
        if public and (inspect.isfunction(member) or isinstance(member, property)):
            yield name, member


@part
def python() -> str:
    """The classes that callers and agent code hold, member by member."""
    written = []
    held: Sequence[tuple[str, type]] = (
        ("app", Outlast), ("handle", TaskHandle), ("client", Client), ("ledger", Ledger),
        ("app.operations", Operations), ("app.pauses", Pauses),
        ("app.schedules", Schedules), ("app.approvals", Approvals), ("app.rules", Rules),
        ("task", TaskContext), ("child", Child), ("callback", Callback), ("call", ToolCall),
        ("call.http", http.HttpCall),
    )  # fmt: skip
    inside = {"check", "check_open", "gateway_place", "leave", "mark_undone", "others_open"}
    for name, kind in held:
        written += [f"### {kind.__name__}", prose(kind.__doc__)]
        rows = [
            (_signature(f"{name}.{member}", what), prose(what.__doc__).replace("\n\n", " "))
            for member, what in _members(kind)
            if member not in inside
        ]
        written.append(table(["member", "meaning"], rows))
    written += ["### Options of `@app.tool`", table(["option", "meaning"], _tool_options())]
    written += ["### Options of `call.http`", prose(http.Options.__doc__)]
    return "\n\n".join(written)


def _tool_options() -> Iterator[tuple[str, str]]:
    names = list(ToolOptions.__annotations__)
    meaning = described(ToolOptions.__doc__, names)
    for name in names:
        yield code(f"{name}="), meaning[name]


@part
def views() -> str:
    """The records that callers read, with their fields."""
    kinds = [outlast.TaskView, outlast.EventView, outlast.OperationView, outlast.EvidenceView]
    kinds += [
        views_.QueueView,
        views_.PauseView,
        views_.AuditView,
        ledger.PlanView,
        ledger.ToolStats,
        ledger.OtherSide,
        outlast.ScheduleView,
        views_.ApprovalView,
        views_.VoteView,
        views_.RuleView,
        linking.ApprovalLink,
        Posted,
        CancelReply,
    ]
    return table(
        ["record", "fields", "meaning"],
        [
            (
                code(kind.__name__), ", ".join(code(f.name) for f in dataclasses.fields(kind)),
                prose(kind.__doc__).replace("\n\n", " ").rstrip("."),
            )
            for kind in [*kinds, outlast.AttemptView, outlast.Request]
        ],
    )  # fmt: skip


@part
def policy() -> str:
    """What a policy function answers."""
    rows = []
    for kind in (Allow, Ask, Deny):
        fields = {field.name: field for field in dataclasses.fields(kind)}
        shown = [
            name if field.default is dataclasses.MISSING else f"{name}={field.default!r}"
            for name, field in fields.items()
        ]
        meaning = prose(kind.__doc__).replace("\n\n", " ").rstrip(".")
        rows.append((f"`{kind.__name__}({', '.join(shown)})`", meaning))
    return table(["answer", "meaning"], rows)


@part
def verdicts() -> str:
    """What a tool raises."""
    kinds = [errors.Rejected, errors.NotSent, errors.Uncertain, errors.Invalid, errors.Forbidden]
    rows = []
    for kind in kinds:
        own = "__init__" in vars(kind)
        shown = _signature(kind.__name__, kind.__init__) if own else f"`{kind.__name__}(message)`"
        rows.append((shown, prose(kind.__doc__).rstrip(".")))
    return table(["raise", "meaning"], rows)


@part
def seeded_defects() -> str:
    """Deliberate faults, and who found them, as measured."""
    kept = _proof()
    found = [row for row in kept["defects"] if row["caught"]]
    told = table(
        ("fault", "found by", "schedules", "measured"),
        (
            (
                f"{code(row['name'])}: {row['says']}",
                "; ".join(code(by) if by.isidentifier() else by for by in row["by"]),
                row["schedules"],
                f"{row['measured']}, {row['commit']}",
            )
            for row in found
        ),
    )
    when = f"{len(found)} of {len(kept['defects'])}, on {kept['machine']} with Python {kept['python']}."
    return f"{when}\n\n{told}"


@part
def missed_defects() -> str:
    """Deliberate faults that were not found, and those that this world cannot have."""
    kept = _proof()
    missed = [
        (f"{code(row['name'])}: {row['says']}", f"{row['reason']} ({row['schedules']} schedules)")
        for row in kept["defects"]
        if not row["caught"]
    ]
    return table(("fault", "why"), [*missed, *kept["not_possible"].items()])


@part
def covered_moves() -> str:
    """What a run of the simulation has to come through, and what it does not reach."""
    told = f"{len(coverage.PROMISED)} moves and {len(coverage.FAULTS)} kinds of fault: "
    told += ", ".join(sorted(coverage.FAULTS)) + ". Not reached:\n\n"
    return told + table(
        ("move", "why"), ((code(" ".join(move)), why) for move, why in sorted(coverage.UNREACHED.items()))
    )


@part
def explored() -> str:
    """What the explorer has played in its long form, by form and setting."""
    kept = json.loads((Path(__file__).parent / "explanation" / "explorer.json").read_text())
    rows = []
    for form, settings in kept.items():
        for setting, parts in settings.items():
            told = [*parts.values()]
            rows.append(
                (
                    form,
                    setting,
                    ", ".join(parts),
                    *(f"{sum(one[name] for one in told):,}" for name in ("casts", "runs", "cut", "findings")),
                    f"{sum(one['seconds'] for one in told):,.0f} s",
                    "; ".join(sorted({f"{one['measured']}, {one['commit']}" for one in told})),
                )
            )
    whole = [one for settings in kept.values() for parts in settings.values() for one in parts.values()]
    counts = [sum(one[name] for one in whole) for name in ("casts", "runs", "findings")]
    return "{:,} casts in {:,} runs, {:,} findings.\n\n".format(*counts) + table(
        ("form", "setting", "parts", "casts", "runs", "cut", "findings", "time", "measured"), rows
    )


@part
def proved() -> str:
    """How far the long proof has come, of the simulation and of the storms, and what the judges saw."""
    told, kept = [], Kept()
    if rows := kept.rows("simulation"):
        done = sum(row["schedules"] for row in rows)
        open_ = ", ".join(f"{first} to {last}" for _, (first, last) in schedules.broken(rows))
        seen = coverage.Coverage()
        for row in rows:
            seen.add(map(tuple, row["moves"]), row["faults"])
        told.append(
            f"### The simulation\n\n{done:,} schedules;"
            f" {f'something broke in seeds {open_}' if open_ else 'nothing broke that stands'};"
            f" {len(seen.moves & coverage.PROMISED)} of {len(coverage.PROMISED)} moves and"
            f" {len(seen.faults & coverage.FAULTS)} of {len(coverage.FAULTS)} kinds of fault."
            " By the code that ran them:\n\n"
            + table(
                ("code", "schedules", "seeds", "violations", "a second and core", "measured"),
                (
                    (
                        row["code"],
                        f"{row['schedules']:,}",
                        ", ".join(f"{first} to {last}" for first, last in row["ranges"]),
                        str(row["violations"]),
                        f"{row['schedules'] / row['cpu_s']:.0f}" if row["cpu_s"] else "-",
                        _measured(row),
                    )
                    for row in rows
                ),
            )
        )
    for store in storms.STORES:
        rows = kept.rows(storms.part_of(store))
        if whole := storms.together(row["told"] for row in rows if row["told"]):
            by_code = table(
                (
                    "code",
                    "campaigns",
                    "kills",
                    "pauses",
                    "restarts",
                    "violations",
                    "load of the machine",
                    "measured",
                ),
                (
                    (
                        row["code"],
                        row["told"]["campaigns"],
                        *(row["told"]["families"][name] for name in ("kills", "pauses", "restarts")),
                        len(row["told"]["violations"]),
                        "{} to {}".format(*row["load"]),
                        _measured(row),
                    )
                    for row in rows
                    if row["told"]
                ),
            )
            found = [one for row in rows for one in row.get("broken", ())]
            told.append(
                f"### On {whole['store']}\n\n{report.markdown(whole).strip()}\n\nBy the code:\n\n{by_code}"
                + "".join(
                    f"\n\n{one['code']} broke something from seed {one['told']['seed']} on, which counts for"
                    f" nothing here; {'played again by ' + one['again'] if one['again'] else 'it stands'}."
                    for one in found
                )
            )
    return "\n\n".join(told)


def _measured(row: dict[str, Any]) -> str:
    return f"{row['measured']}, {row['machine']}, Python {row['python']}"


def _proof() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads((Path(__file__).parent / "explanation" / "proof.json").read_text())
    return kept


def main() -> None:
    """Fill every page."""
    for path in sorted(Path(__file__).parent.rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"written: {path.name}")


if __name__ == "__main__":
    main()
