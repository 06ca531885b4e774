"""Questions to people: asked once, answered once, remembered."""

from __future__ import annotations

from typing import Any, Literal

import pydantic
import pytest
from tests.engine.house import House

from outlast import TaskContext
from outlast.errors import ApprovalConflict, InvalidRequest, NotAllowed, OperationError
from outlast.handle import TaskHandle
from outlast.views import ApprovalView


class Shipping(pydantic.BaseModel):
    """Where a parcel goes."""

    street: str
    floor: int = 0


def register(house: House, **asked: Any) -> Any:
    @house.app.agent
    async def wonders(task: TaskContext) -> Any:
        try:
            answer = await task.ask("Where to?", **asked)
        except OperationError as error:
            return {"code": error.code, "reason": error.reason, "text": str(error)}
        return {"type": type(answer).__name__, "answer": answer}

    return wonders


async def asked(house: House, handle: TaskHandle) -> ApprovalView:
    await house.waits(handle, "approval")
    (question,) = await house.app.approvals.list(task=handle.id)
    return question


async def answer(house: House, question: ApprovalView, said: Any, **more: Any) -> ApprovalView:
    given = {"fingerprint": question.fingerprint, "by": "ana", **more}
    return await house.app.approvals.answer(question.id, said, **given)


async def test_an_answer_reaches_the_agent_once_asked(house: House) -> None:
    handle = await house.submit(register(house))
    house.start()
    question = await asked(house, handle)
    assert (question.subject, question.name, question.reason) == ("question", "ask", "Where to?")
    assert question.shown == {"question": "Where to?"}
    await house.stop()
    await answer(house, question, {"anything": ["goes"]})
    house.start()
    view = await house.ended(handle)
    assert view.result == {"type": "dict", "answer": {"anything": ["goes"]}}
    assert len(await house.app.approvals.list(task=handle.id, state=None)) == 1
    assert await house.violations() == []


async def test_choices(house: House) -> None:
    handle = await house.submit(register(house, choices=["home", "office", 1]))
    house.start()
    question = await asked(house, handle)
    for wrong in ("HOME", True, None, 1.5):
        with pytest.raises(InvalidRequest, match="none of the choices"):
            await answer(house, question, wrong)
    await answer(house, question, "office")
    assert (await house.ended(handle)).result["answer"] == "office"
    with pytest.raises(ApprovalConflict):
        await answer(house, question, "home", by="bob")


async def test_a_form_gives_the_answer_its_type(house: House) -> None:
    handle = await house.submit(register(house, form=Shipping))
    house.start()
    question = await asked(house, handle)
    assert question.shown["form"]["properties"]["street"]["type"] == "string"
    for wrong in ({}, {"street": 5}, {"street": "High St", "floor": "first"}, "High St"):
        with pytest.raises(InvalidRequest, match="does not fit the form"):
            await answer(house, question, wrong)
    await answer(house, question, {"street": "High St"})
    view = await house.ended(handle)
    assert view.result == {"type": "Shipping", "answer": {"street": "High St", "floor": 0}}


async def test_a_plain_type_is_a_form(house: House) -> None:
    handle = await house.submit(register(house, form=Literal["a", "b"] | int))
    house.start()
    question = await asked(house, handle)
    with pytest.raises(InvalidRequest):
        await answer(house, question, "c")
    await answer(house, question, 7)
    assert (await house.ended(handle)).result["answer"] == 7


async def test_nobody_answers_in_time(house: House) -> None:
    view = await house.run(register(house, timeout=0.2))
    assert view.result["code"] == "approval_expired"
    (question,) = await house.app.approvals.list(task=view.id, state=None)
    assert question.state == "expired"


async def test_somebody_refuses_to_answer(house: House) -> None:
    handle = await house.submit(register(house))
    house.start()
    question = await asked(house, handle)
    await house.app.approvals.decide(
        question.id, "reject", fingerprint=question.fingerprint, by="ana", reason="ask legal"
    )
    result = (await house.ended(handle)).result
    assert (result["code"], result["reason"]) == ("approval_denied", "person")
    assert "ask legal" in result["text"]


async def test_who_may_answer(house: House) -> None:
    handle = await house.submit(register(house, to=("legal",)))
    house.start()
    question = await asked(house, handle)
    with pytest.raises(NotAllowed):
        await answer(house, question, "here", roles=("support",))
    with pytest.raises(InvalidRequest, match="answer it"):
        await house.app.approvals.decide(
            question.id, "approve", fingerprint=question.fingerprint, by="ana", roles=("legal",)
        )
    await answer(house, question, "here", roles=("legal",))
    assert (await house.ended(handle)).result["answer"] == "here"


@pytest.mark.parametrize(
    "asked_for",
    [
        {"choices": []},
        {"choices": ["a"], "form": int},
        {"quorum": 0},
        {"timeout": -1},
        {"timeout": "300000d"},
        {"form": object()},
    ],
)
async def test_bad_questions_are_refused_at_once(house: House, asked_for: Any) -> None:
    @house.app.agent
    async def wonders(task: TaskContext) -> str:
        with pytest.raises(InvalidRequest):
            task.ask("Where to?", **asked_for)
        with pytest.raises(InvalidRequest):
            task.ask("  ")
        return "refused"

    assert (await house.run(wonders)).result == "refused"
