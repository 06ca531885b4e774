"""Policy and rules that change under way, in the world: what the judge lets pass, and what it does not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.simulation.breaking import Break, shows

from outlast.core.approval import Allow, Ask, Deny
from outlast.engine import approvals
from outlast.store.sqlite import rules
from outlast.store.sqlite.transaction import SQL
from outlast.testing.simulation import Faults, run_schedule

RULED = Faults(crashes=2, freezes=1, drains=1, store=0.05, tools=0.2, retries=1, rules=2)


def test_nothing_is_sent_against_what_stands() -> None:
    effects = changed = 0
    played: set[str] = set()
    for seed in range(30):
        report = run_schedule(seed, tasks=1, faults=RULED)
        assert not report.violations, report
        effects += report.effects
        changed += sum(" put_rule" in line or " withdraw_rule" in line for line in report.lines)
        played |= report.played
    assert "policy away" in played
    assert changed > 150
    assert effects > 100


def _rules_that_changed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "agrees", lambda *_: True)


def _rules_of_tools_without_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "any_rules", lambda _: False)


def _a_rule_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = approvals._rules

    def careless(given: Any) -> Any:
        readable = tuple(rule for rule in given.rules if "about" not in rule.bounds)
        return read(dataclasses.replace(given, rules=readable))

    monkeypatch.setattr(approvals, "_rules", careless)


def _policy_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = approvals._ask_policy

    async def trusting(*given: Any) -> Any:
        try:
            return await ask(*given)
        except approvals.NoPolicy:
            return Allow()

    monkeypatch.setattr(approvals, "_ask_policy", trusting)


def _what_policy_denies(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = approvals._ask_policy

    async def mild(*given: Any) -> Any:
        answer = await ask(*given)
        return Ask("is it so bad?", expires=5) if isinstance(answer, Deny) else answer

    monkeypatch.setattr(approvals, "_ask_policy", mild)


def _a_rule_that_denies(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = approvals.judge

    def lenient(policy: Any, given: Any, *more: Any) -> Any:
        allowing = [rule for rule in given if rule.verdict == "allow"]
        found = judge(policy, allowing, *more)
        return found if found.by.startswith("rule") else judge(policy, given, *more)

    monkeypatch.setattr(approvals, "judge", lenient)


def _what_a_person_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    decided = approvals._decided

    def forgetful(*given: Any) -> Any:
        said = decided(*given)
        return None if said == "rejected" else said

    monkeypatch.setattr(approvals, "_decided", forgetful)


def _what_was_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    statement = SQL["withdraw_rule"]
    assert "withdrawn_at = :now" in statement
    monkeypatch.setitem(
        SQL, "withdraw_rule", statement.replace("withdrawn_at = :now", "withdrawn_at = nullif(:now, :now)")
    )


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        (_rules_that_changed_meanwhile, "a rule denies it"),
        (_rules_of_tools_without_policy, "a rule denies it"),
        (_a_rule_that_cannot_be_read, "a rule stands that cannot be read"),
        (_policy_that_cannot_be_asked, "policy had not answered"),
        (_what_policy_denies, "policy denies it"),
        (_a_rule_that_denies, "a rule denies it"),
        (_what_a_person_refused, "a person has refused it"),
        (_what_was_taken_back, "were taken back"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else value.replace(" ", "_"),
)
def test_what_is_broken_is_seen(monkeypatch: pytest.MonkeyPatch, broken: Break, seen: str) -> None:
    shows(monkeypatch, broken, seen, RULED)
