"""Random programs in which people and other tasks have their say: signals, cancels, children, decisions."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from tests.contract.programs import Program

from outlast.store.approving import ApprovalFilter, ApprovalRow, Decision
from outlast.store.contract import Store
from outlast.store.entries import CommitIntent, Consent, Entry, ExpireApproval, TaskWrites
from outlast.store.posting import Cancel, Heard, Signal
from outlast.store.reconciling import EVERY_TENANT, Pause
from outlast.store.records import Claimed, Evidence, OperationRow
from outlast.store.rows import TaskFilter
from outlast.testing.store_suite.scene import HOUR, SECOND

PEOPLE = ("person:ann", "person:bob", "person:rob")
POLICIES = ("policy-1", "policy-2")


class PeopleProgram(Program):
    """A random program with every verb of people."""

    doubted: tuple[str, ...] = ("running", "unknown")
    """States of operations about which evidence comes late."""

    def __init__(self, seed: int, stores: tuple[Store, ...], now: int) -> None:
        super().__init__(seed, stores, now)
        # By dice of their own, so that switches change little of what else is done.
        self.switches = random.Random(f"switches of {seed}")
        self.rules = 0
        self.said: list[Decision] = []
        self.approvals: list[ApprovalRow] = []
        self.versions: dict[tuple[str, str], int] = {}
        self.inbox: set[tuple[str, str, int]] = set()

    def kinds(self) -> dict[Callable[[], Awaitable[None]], int]:
        return {
            **super().kinds(),
            self.spawn: 3,
            self.post: 5,
            self.cancel: 2,
            self.news: 3,
            self.deliver: 3,
            self.decide: 8,
            self.rule: 2,
            self.contradict: 1,
            self.read: 2,
        }

    async def table(self, name: str) -> list[dict[str, Any]]:
        """Read a table of the first store."""
        return list((await self.stores[0].dump())[name])

    # -- facts -----------------------------------------------------------------------------------------

    async def spawn(self) -> None:
        if not self.claims:
            return
        batch = []
        for claimed in self.dice.choices(self.claims, k=2):
            _, agent = self.dice.choice(self.agents)
            epoch = claimed.epoch + self.dice.choice([0, 0, 0, 1])
            parent = self.scene.parent(claimed, detached=self.dice.random() < 0.2)
            parent = replace(parent, epoch=epoch)
            batch.append(
                self.scene.submission(
                    tenant=claimed.tenant, key=None, agent=agent, pool="pool-x", parent=parent
                )
            )
        self.tasks += batch
        await self.on_both(f"spawn {batch}", lambda store: store.submit(batch))

    def somebody(self) -> Any:
        """Name a task, or nobody's."""
        if not self.tasks or self.dice.random() < 0.1:
            return self.scene.submission()
        return self.dice.choice(self.tasks)

    async def post(self) -> None:
        signals = []
        for _ in range(self.dice.randint(1, 3)):
            of, digest = self.somebody(), self.dice.choice(["digest-1", "digest-2"])
            signals.append(
                Signal(
                    tenant=of.tenant,
                    task=of.task,
                    name=self.dice.choice(["go", "stop"]),
                    data=f'{{"says": "{digest}"}}',
                    digest=digest,
                    key=self.dice.choice([None, "k1", "k2"]),
                )
            )
        await self.on_both(f"post {signals}", lambda store: store.post(signals, now=self.scene.now))

    async def cancel(self) -> None:
        requests = [
            Cancel(
                tenant=of.tenant,
                task=of.task,
                by=self.dice.choice(PEOPLE),
                reason=f"reason-{self.scene.number()}",
            )
            for of in (self.somebody(), self.somebody())
        ]
        await self.on_both(f"cancel {requests}", lambda store: store.cancel(requests, now=self.scene.now))

    async def news(self) -> None:
        session = self.dice.choice([*self.sessions, "ses_none"])
        heard = []
        for lease in await self.table("leases"):
            if self.dice.random() < 0.6:
                facts = max(0, lease["news"] - self.dice.choice([0, 0, 1]))
                heard.append(Heard(tenant=lease["tenant"], task=lease["task"], facts=facts))
        await self.on_both(
            f"news {session} {heard}", lambda store: store.news(session, heard, now=self.scene.now)
        )

    async def deliver(self) -> None:
        await self.on_both("deliver", lambda store: store.deliver(500, now=self.scene.now))

    # -- decisions -------------------------------------------------------------------------------------

    async def decide(self) -> None:
        rows = await self.table("approvals")
        pending = [row for row in rows if row["state"] == "pending"]
        if not rows:
            return
        decisions = [self.decision(row) for row in self.dice.choices([*pending * 3, *rows], k=2)]
        if self.said and self.dice.random() < 0.4:
            decisions.append(self.dice.choice(self.said[-4:]))
        self.said += decisions
        await self.on_both(f"decide {decisions}", lambda store: store.decide(decisions, now=self.scene.now))

    def decision(self, row: dict[str, Any]) -> Decision:
        """Make a decision that may count or not."""
        dice = self.dice
        edit: dict[str, Any] = {}
        verdict = dice.choice(["approve", "approve", "approve", "reject"])
        if row["subject"] == "call" and verdict == "approve" and dice.random() < 0.2:
            edit = {
                "arguments": self.scene.text("edited"),
                "shown": self.scene.text("shown"),
                "new_fingerprint": dice.choice(["edited-1", "edited-2"]),
            }
        answers = row["subject"] == "question" and verdict == "approve"
        return Decision(
            tenant=dice.choice([row["tenant"]] * 9 + ["tenant-none"]),
            approval=row["id"],
            verdict=verdict,  # type: ignore[arg-type]
            by=dice.choice(PEOPLE),
            fingerprint=dice.choice([row["fingerprint"]] * 4 + ["another"]),
            reason=f"reason-{self.scene.number()}",
            roles=dice.choice([("*",), ("lead",), ("intern",)]),
            via=dice.choice(["api", "link", "cli"]),
            answer=dice.choice(['"yes"', '"yes"', '"no"']) if answers else None,
            **edit,
        )

    async def rule(self) -> None:
        tenant, _ = self.dice.choice(self.agents)
        if self.rules == 0 or self.dice.random() < 0.4:
            rule = self.scene.rule(
                self.dice.choice(["pay", "mail"]), self.dice.choice(["allow", "deny"]), tenant=tenant
            )
            self.rules = await self.on_both(
                f"put {rule}", lambda store: store.put_rule(rule, now=self.scene.now)
            )
        else:
            number = self.dice.randint(1, self.rules)
            stood = await self.on_both(
                f"withdraw {number}",
                lambda store: store.withdraw_rule(tenant, number, "person:ann", "no", now=self.scene.now),
            )
            self.seen.add(f"withdrawn {stood}")

    async def switch(self) -> None:
        """Throw a switch, or take back what stands."""
        standing = await self.table("pauses")
        tenant, scope = self.switches.choice(
            [
                (
                    self.switches.choice(self.agents)[0],
                    self.switches.choice(["all", "tool:pay", "tool:mail"]),
                ),
                (EVERY_TENANT, self.switches.choice(["all", "tool:pay"])),
                *((row["tenant"], row["scope"]) for row in standing * 4),
            ]
        )
        by, reason = self.switches.choice(PEOPLE), self.switches.choice(["too many", "the auditors"])
        switch = Pause(tenant=tenant, scope=scope, reason=reason, by=by)
        if standing:
            stood = await self.on_both(
                f"resume {switch}", lambda store: store.resume(switch, now=self.scene.now)
            )
            self.seen.add(f"resumed {stood}")
        else:
            await self.on_both(f"pause {switch}", lambda store: store.pause(switch, now=self.scene.now))

    async def step(self) -> None:
        await super().step()
        if self.switches.random() < 0.2:
            await self.switch()

    # -- the journal -----------------------------------------------------------------------------------

    async def flush(self) -> None:
        self.approvals = [
            row
            for tenant, _ in self.agents
            for row in await self.stores[0].list_approvals(
                ApprovalFilter(tenant=tenant, state=None, limit=999)
            )
        ]
        self.versions = {
            (tenant, tool): (await self.stores[0].read_rules(tenant, tool)).version
            for tenant, _ in self.agents
            for tool in ("pay", "mail")
        }
        self.inbox = {
            (row["tenant"], row["task"], row["number"])
            for row in await self.table("inbox")
            if row["taken_by"] is None
        }
        await super().flush()

    def entry(self, claimed: Claimed, rows: list[OperationRow]) -> Entry:
        scene, dice = self.scene, self.dice
        kind = dice.choice(
            ["other"] * 6 + ["ask", "ask", "expire", "call", "call", "call", "take", "hear", "resend"]
        )
        mine = [row for row in self.approvals if (row.tenant, row.task) == (claimed.tenant, claimed.task)]
        if kind == "ask":
            asked = [row for row in rows if row.state != "running" or row.kind == "signal"]
            row = dice.choice(asked) if asked and dice.random() < 0.4 else None
            key = row.key if row else f"ask-{dice.randint(1, 4)}"
            numbers = [one.number for one in mine if one.key == key]
            return self.question(key, max(numbers, default=0) + dice.choice([1, 1, 0]) or 1)
        if kind == "expire" and mine:
            one = dice.choice(mine)
            return ExpireApproval(key=one.key, number=one.number, events=(scene.event(),))
        if kind == "call" and mine:
            return self.call(claimed, dice.choice(mine), mine, rows)
        if kind == "take":
            numbers = [
                n for tenant, task, n in self.inbox if (tenant, task) == (claimed.tenant, claimed.task)
            ]
            if numbers:
                return scene.step(kind="signal", takes=(dice.choice(sorted(numbers)),))
        if kind == "hear":
            kids = [row.key for row in rows if row.kind == "child"]
            if kids:
                return scene.step(dice.choice(kids), kind="child", takes_end=True)
        if kind == "resend":
            unknown = [row for row in rows if row.state == "unknown"]
            row = dice.choice(unknown) if unknown else None
            if row is not None and not any(one.key == row.key for one in mine):
                return scene.intent(
                    row.key, attempt=row.attempt, turn=row.turn, resend=True, timeout_us=4 * SECOND
                )
        made = super().entry(claimed, rows)
        if isinstance(made, CommitIntent) and any(one.key == made.key for one in mine):
            # A worker that has asked goes by what was answered.
            return self.call(claimed, next(one for one in mine if one.key == made.key), mine, rows)
        return made

    def arranged(self, writes: list[TaskWrites]) -> list[TaskWrites]:
        """Have who takes an end that it has heard of by itself write alone, and take nothing else: the
        contract leaves open whether an end in the same batch is taken, and who is first at what lies
        there."""
        for one in writes:
            heard = [entry for entry in one.entries if getattr(entry, "takes_end", False)]
            if heard:
                others = [
                    entry
                    for entry in one.entries
                    if not getattr(entry, "takes_end", False) and not getattr(entry, "takes", ())
                ]
                return [replace(one, entries=(heard[0], *others))]
        return writes

    def question(self, key: str, number: int) -> Entry:
        """Ask about a call, or for an answer."""
        scene, dice = self.scene, self.dice
        make = dice.choice([scene.ask, scene.ask, scene.question])
        changes: dict[str, Any] = {"name": dice.choice(["pay", "mail"])} if make == scene.ask else {}
        return make(
            key,
            number=number,
            fingerprint=dice.choice(["same-1", "same-2"]),
            policy=dice.choice(POLICIES),
            roles=dice.choice([(), (), ("lead",), ("lead", "chief")]),
            quorum=dice.choice([1, 1, 2]),
            four_eyes=dice.random() < 0.3,
            requester=dice.choice([None, "person:rob"]),
            expires_in_us=dice.choice([None, 20 * SECOND, HOUR, 3 * HOUR]),
            **changes,
        )

    def call(
        self, claimed: Claimed, asked: ApprovalRow, mine: list[ApprovalRow], rows: list[OperationRow]
    ) -> Entry:
        """Make an intent under the last decision of an operation."""
        dice = self.dice
        last = max((row for row in mine if row.key == asked.key), key=lambda row: row.number)
        row = next((row for row in rows if row.key == asked.key), None)
        version = self.versions.get((claimed.tenant, last.name), 0)
        fingerprint = dice.choice([last.fingerprint] * 9 + ["another"])
        consent = Consent(
            policy=dice.choice([last.policy] * 9 + ["another"]),
            rules=dice.choice([version] * 9 + [version + 1]),
            approval=last.number,
            fingerprint=fingerprint,
        )
        return self.scene.intent(
            last.key,
            name=last.name,
            attempt=row.attempt if row else 0,
            turn=row.turn if row else 0,
            resend=row is not None and row.state == "unknown",
            decision=fingerprint,
            timeout_us=4 * SECOND,
            consent=consent,
            events=(self.scene.event(),),
        )

    async def contradict(self) -> None:
        pieces = [
            Evidence(
                tenant=row["tenant"],
                task=row["task"],
                key=row["key"],
                attempt=self.dice.choice([row["attempt"], row["attempt"], 1]),
                source="late",
                data=self.scene.text("d"),
                says=self.dice.choice(["happened", "did_not_happen", "over"]),  # type: ignore[arg-type]
            )
            for row in await self.operations()
            if row["state"] in self.doubted and self.dice.random() < 0.5
        ]
        await self.on_both(f"contradict {pieces}", lambda store: store.note(pieces, now=self.scene.now))

    # -- views -----------------------------------------------------------------------------------------

    async def read(self) -> None:
        tenant, _ = self.dice.choice(self.agents)
        one = self.somebody()
        after = self.dice.choice([0, 1, 2])
        state: Any = self.dice.choice([None, "pending", "approved"])
        query = ApprovalFilter(tenant=tenant, state=state, limit=5)
        page = await self.on_both(f"{query}", lambda store: store.list_approvals(query))
        if page:
            last = page[-1]
            on = replace(query, after=(last.created_at, last.id))
            await self.on_both(f"{on}", lambda store: store.list_approvals(on))
            await self.on_both("votes", lambda store: store.read_votes(tenant, last.id))
            await self.on_both("approval", lambda store: store.read_approval(tenant, last.id))
        await self.on_both("inbox", lambda store: store.read_inbox(one.tenant, one.task, after))
        await self.on_both("approvals", lambda store: store.read_approvals(one.tenant, one.task))
        await self.on_both("children", lambda s: s.list_tasks(TaskFilter(tenant=tenant, parent=one.task)))
        await self.on_both("rules", lambda store: store.list_rules(tenant))
        await self.on_both("rules of pay", lambda store: store.read_rules(tenant, "pay"))
        await self.on_both("audit", lambda store: store.read_audit(tenant))
