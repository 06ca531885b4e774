"""The judgement of a schedule: at each call, in the middle of it all, and at its end.

What only an ingredient can break is judged by that ingredient; see ``ingredients``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from outlast.core import ids, values
from outlast.testing.checkers import CHECKERS, Evidence, Violation, check_all
from outlast.testing.checkers.seen import Dump
from outlast.testing.simulation.agents import MAY_DO_AGAIN, MAY_FAIL, MAY_MAKE_MORE, MUST_BE_ASKED
from outlast.testing.simulation.heeding import Heeding
from outlast.testing.simulation.ingredients import Ingredient
from outlast.testing.simulation.leaving_alone import LeavingAlone
from outlast.testing.simulation.loop import Node
from outlast.testing.simulation.people import People
from outlast.testing.simulation.weather import Faults
from outlast.testing.simulation.world import World
from outlast.tools.call import ToolCall

__all__ = ["Judge"]

Row = Mapping[str, Any]


class Judge:
    """Whoever looks at one world, and writes every broken promise into its violations.

    max_deaths: after how many deaths in a row a task is given up.
    """

    def __init__(
        self,
        world: World,
        people: People,
        faults: Faults,
        *,
        ingredients: Sequence[Ingredient],
        max_deaths: int,
    ) -> None:
        self._world, self._people, self._faults = world, people, faults
        self._ingredients = ingredients
        self._heeding = Heeding(world, faults)
        if faults.throttled:
            LeavingAlone(world)
        self._max_deaths = max_deaths
        self._violations = world.violations
        self._earlier: Dump | None = None
        self._made_under: set[tuple[str, str]] = set()
        """Keys that calls have succeeded under which are on record with one, and their tasks."""

    def departs(self, call: ToolCall) -> None:
        """Look whether the intent of a call is on disk at the moment when the call leaves."""
        key = call.idempotency_key.partition(":")[2]
        sql = "select attempt from operations where tenant = ? and task = ? and key = ?"
        rows = self._world.read(sql, call.tenant, call.task, key)
        if not rows or rows[0][0] < call.attempt:
            self._violations.append(f"{call.idempotency_key}: attempt {call.attempt} left before its intent")

    def begins(self, call: ToolCall) -> None:
        """Look whether the lease and the intent of a call stand when its sender has made sure of it."""
        ended = 'select "end" from attempts where tenant = ? and task = ? and epoch = ?'
        if ("lost",) in self._world.read(ended, call.tenant, call.task, call.epoch):
            self._violations.append(f"{call.idempotency_key}: was sent under a lease that was lost")
        key = call.idempotency_key.partition(":")[2]
        sql = "select epoch, attempt from operations where tenant = ? and task = ? and key = ?"
        if self._world.read(sql, call.tenant, call.task, key) != [(call.epoch, call.attempt)]:
            self._violations.append(
                f"{call.idempotency_key}: its intent is not that of attempt {call.attempt}"
            )

    def look(self, dump: Dump) -> None:
        """Ask every checker in the middle of it all."""
        log = self._world.service.log
        self._ask(check_all(dump, accepted=self._people.accepted, recorder=log, earlier=self._earlier))
        self._earlier = dump

    def look_on(self, dump: Dump, *, earlier: Dump) -> None:
        """Ask every checker of a world in which nothing has to be done, and was not a while ago either."""
        self._ask(check_all(dump, earlier=earlier, quiet=True))

    def _ask(self, found: list[Violation]) -> None:
        self._violations += [f"{each.promise}: {each.text}" for each in found]

    def judge(self, dump: Dump, living: set[Node]) -> None:
        """Judge what is left when the world has come to its end. living: nodes of workers not dead."""
        log = self._world.service.log
        self._ask(check_all(dump, accepted=self._people.accepted, recorder=log, quiet=True))
        if self._earlier is not None:
            stands = CHECKERS["results_never_change"](Evidence(dump=dump, earlier=self._earlier))
            self._violations += [f"results_never_change: {text}" for text in stands]
        made = {entry.key: entry.effect_id for entry in log if entry.effect_id is not None}
        ledger: dict[str, list[Row]] = defaultdict(list)
        for row in dump["operations"]:
            ledger[row["task"]].append(row)
            if row["idempotency_key"] is not None and row["state"] == "succeeded":
                self._made_under.add((row["idempotency_key"], row["task"]))
        self._judge_consent(dump)
        self._judge_calm(dump)
        self._judge_repeats(dump)
        for each in self._ingredients:
            self._violations += each.judge(dump)
        self._violations += self._heeding.judge(dump, living)
        heads = {row["id"]: row for row in dump["tasks"]}
        results = {(row["task"], row["round"]): row for row in dump["results"]}
        for _, task in self._people.accepted:
            end = results.get((task, heads[task]["round"])) if task in heads else None
            if end is None:
                self._violations.append(f"{task}: has no end")
                continue
            told = task in self._people.cancelled and task not in self._people.retried
            if told and end["state"] != "cancelled":
                self._violations.append(f"{task}: ended as {end['state']} after its cancel was acknowledged")
            if end["state"] == "succeeded":
                self._compare(task, values.decode(end["result"]), ledger[task], made)
            elif not self._may_end(task, end):
                self._violations.append(f"{task}: ended as {end['state']}: {end['error']}")

    def _compare(self, task: str, result: Any, ledger: list[Row], made: dict[str, str]) -> None:
        """Compare what a task answered with what the service made for it, and what it heard with what was
        sent."""
        # What the operator has found absent for a fork, the task that it was made from may yet make itself.
        tools = [row for row in ledger if row["kind"] == "tool" and not self._is_another_s(row)]
        keys = {ids.sent_key(task, row["key"], row["idempotency_key"]) for row in tools}
        effects = sorted(made[key] for key in keys if key in made)
        said = sorted(result["tickets"])
        loose = self._people.shapes[task] in MAY_MAKE_MORE and set(said) <= set(effects)
        if said != effects and not loose:
            self._violations.append(f"{task}: answered {said}; the service made {effects}")
        heard, sent = result.get("heard", []), self._people.sent(task)
        if len(heard) != len(set(heard)) or not set(heard) <= sent:
            self._violations.append(f"{task}: heard {heard}; it was sent {sorted(sent)}")

    def _is_another_s(self, row: Row) -> bool:
        """Whether a call is another task's to make: the operator has found it absent for a fork; or the task
        that was forked has given it up, and its fork has made it."""
        own = ids.sent_key(row["task"], row["key"], None)
        failed = row["state"] == "failed"
        if row["idempotency_key"] not in (None, own):
            return failed and (row["task"], row["key"]) in self._people.denied
        return failed and any(key == own and task != row["task"] for key, task in self._made_under)

    def _judge_consent(self, dump: Dump) -> None:
        """Look whether people decided on what they saw, and whether what needs their word has it."""
        for row in dump["votes"]:
            said = self._people.said.get((row["approval"], row["who"]), set())
            if not said & {"*", row["fingerprint"]}:
                self._violations.append(f"{row['approval']}: {row['who']} has not seen what they decided on")
        used = {
            (row["task"], row["key"], row["fingerprint"])
            for row in dump["approvals"]
            if row["used_at"] is not None
        }
        for row in dump["operations"]:
            needs = row["name"] in MUST_BE_ASKED and row["attempt"] > 0 and row["idempotency_key"] is None
            if needs and (row["task"], row["key"], row["decision"]) not in used:
                self._violations.append(f"{row['task']}:{row['key']} was sent, and nobody had agreed to it")

    def _judge_calm(self, dump: Dump) -> None:
        """Look whether a call's outcome was lost although nothing went wrong: not by a drain, a cancel or an
        end either."""
        faults = self._faults
        if faults.crashes or faults.freezes or faults.store_is_unwell or faults.tools:
            return
        deadlines = {row["id"]: row["deadline_at"] for row in dump["tasks"]}
        of_another: set[tuple[str, str]] = set()
        for row in dump["events"]:
            if row["kind"] != "operation.unknown":
                continue
            said = values.decode(row["data"])
            call = (row["task"], said["operation"])
            # A fork does not know what the task that it was made from has done; nor does it when the service,
            # which wants to be left alone, refuses to be sent the same again.
            if "forked from" in said.get("reason", ""):
                of_another.add(call)
            if call in of_another:
                continue
            deadline = deadlines[row["task"]]
            # A call that was sent a moment before its task's deadline is waited for until then.
            if deadline is None or row["at"] < deadline:
                self._violations.append(f"{row['task']}: lost an outcome in calm weather: {row['data']}")

    def _judge_repeats(self, dump: Dump) -> None:
        """Look whether a fork has done again what was begun before it was made, under another key."""
        effects = {entry.key: entry.fingerprint for entry in self._world.service.log if entry.effect_id}
        submitted = {row["task"]: row["submitted_at"] for row in dump["inputs"]}
        begun: dict[str, list[tuple[str, int | None]]] = defaultdict(list)
        for row in dump["operations"]:
            key = ids.sent_key(row["task"], row["key"], row["idempotency_key"])
            if row["kind"] == "tool" and key in effects:
                begun[row["task"]].append((key, row["first_intent_at"]))
        # What had failed by then had done nothing: what the other task has made of it since is its own.
        failed = {(row["task"], row["idempotency_key"]) for row in dump["issued"] if row["state"] == "failed"}
        for fork, source in self._people.forked.items():
            if self._people.shapes[fork] in MAY_DO_AGAIN:
                continue
            # What was sent without an intent on record is for other judges.
            before = {
                key
                for key, at in begun[source]
                if at is not None and at < submitted[fork] and (fork, key) not in failed
            }
            done = {effects[key] for key in before}
            for key, _ in begun[fork]:
                if key not in before and effects[key] in done:
                    self._violations.append(f"{key}: does what was done before it was forked from {source}")

    def _may_end(self, task: str, end: Row) -> bool:
        """Whether an end of a task that is no success is no fault: tools that go on failing, too many deaths,
        a deadline, people."""
        if end["state"] == "cancelled":
            return task in self._people.touched
        error = values.decode(end["error"])
        # A fork waits for a person where the other task's call is unknown, and is told what they have found.
        found_absent = tuple(str(error.get("operation")).split(":", 1)) in self._people.denied
        if found_absent and error.get("reason") == "did_not_happen":
            return True
        faults = self._faults
        # A worker that is long cut off from the store dies like any other.
        deaths = self._max_deaths if faults.store_is_unwell else faults.crashes + faults.freezes
        may_fail = self._people.shapes[task] in MAY_FAIL or task in self._people.retried
        return may_fail or faults.tools > 0 or faults.throttled > 0 or deaths >= self._max_deaths
