"""Invalid requests about approvals, each with its error and field."""

from typing import TYPE_CHECKING, Any

import pytest
from mnemesh.agents.v1 import agents_service_pb2 as A  # noqa: N812
from mnemesh.agents.v1 import runs_pb2, runs_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.ids import derive_id

if TYPE_CHECKING:
    from .conftest import Wire

AGENT = derive_id("agent", "a test")
SUCCESS = message_pb2.TOOL_RETURN_STATUS_SUCCESS


def decided(**decision: Any) -> dict[str, Any]:
    return {"decisions": [{"tool_call_id": "call_1", **decision}]}


def returned(**given: Any) -> dict[str, Any]:
    return decided(client_return={"status": SUCCESS, **given})


BAD_ANSWERS: list[tuple[dict[str, Any], str]] = [
    ({"agent_id": "invalid", **decided(approve={})}, "agent_id"),
    ({}, "decisions"),
    (decided(), "decisions[0]"),
    ({"decisions": [{"approve": {}}]}, "decisions[0].tool_call_id"),
    (decided(deny={"reason": "x" * 10_001}), "decisions[0].deny.reason"),
    (decided(deny={"reason": "\0"}), "decisions[0].deny.reason"),
    (decided(client_return={}), "decisions[0].client_return.status"),
    (returned(tool_call_id="call_2"), "decisions[0].client_return.tool_call_id"),
    (returned(content=[{"text": {"text": "x"}}, {"image": {}}]), "decisions[0].client_return.content[1].image.source"),
    (returned(content=[{"image": {"url": "https://example.org/a.png"}}] * 6), "decisions[0].client_return.content"),
    (returned(content=[{"text": {"text": "\0"}}]), "decisions[0].client_return.content"),
    (returned(stdout=["x" * 600_000] * 2), "decisions[0].client_return.stdout"),
    ({**decided(approve={}), "approval_request_id": "x"}, "approval_request_id"),
    ({**decided(approve={}), "messages": [{}]}, "messages[0].content"),
    ({**decided(approve={}), "config": {"max_steps": 0}}, "config.max_steps"),
]


@pytest.mark.parametrize(("given", "field"), BAD_ANSWERS, ids=lambda value: value if isinstance(value, str) else "")
async def test_invalid_answer_is_refused_with_its_field(wire: "Wire", given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        async for _ in wire.runs.AnswerApproval(runs_service_pb2.AnswerApprovalRequest(**{"agent_id": AGENT, **given})):
            pass
    assert raised.value.field == field


async def test_answer_for_missing_agent_is_not_found(wire: "Wire") -> None:
    with pytest.raises(NotFound):
        async for _ in wire.runs.AnswerApproval(
            runs_service_pb2.AnswerApprovalRequest(agent_id=AGENT, **decided(approve={}))
        ):
            pass


BAD_TOOLS: list[tuple[list[dict[str, Any]], str]] = [
    ([{"parameters": "{}"}], "config.client_tools[0].name"),
    ([{"name": "a b", "parameters": "{}"}], "config.client_tools[0].name"),
    ([{"name": "a"}, {"name": "a"}], "config.client_tools[1].name"),
    ([{"name": "a", "parameters": "[]"}], "config.client_tools[0].parameters"),
    ([{"name": "a", "parameters": "{"}], "config.client_tools[0].parameters"),
    ([{"name": "a", "parameters": '{"type": "string"}'}], "config.client_tools[0].parameters"),
    ([{"name": f"t{n}"} for n in range(129)], "config.client_tools"),
]


BAD_SKILLS: list[tuple[list[dict[str, Any]], str]] = [
    ([{"location": "/a"}], "config.client_skills[0].name"),
    ([{"name": "a\nb"}], "config.client_skills[0].name"),
    ([{"name": "a", "location": "b\nc"}], "config.client_skills[0].location"),
    ([{"name": "a", "description": "x" * 4_001}], "config.client_skills[0].description"),
    ([{"name": "a"}] * 257, "config.client_skills"),
]


@pytest.mark.parametrize(("tools", "field"), BAD_TOOLS, ids=lambda value: value if isinstance(value, str) else "")
async def test_invalid_client_tool_is_refused(wire: "Wire", tools: list[dict[str, Any]], field: str) -> None:
    assert await refused(wire, {"client_tools": tools}) == field


@pytest.mark.parametrize(("skills", "field"), BAD_SKILLS, ids=lambda value: value if isinstance(value, str) else "")
async def test_invalid_client_skill_is_refused(wire: "Wire", skills: list[dict[str, Any]], field: str) -> None:
    assert await refused(wire, {"client_skills": skills}) == field


async def refused(wire: "Wire", config: Any) -> str | None:
    """Returns the field that the refusal of a configuration names."""
    said = runs_pb2.InputMessage(content=[message_pb2.ContentPart(text=message_pb2.TextPart(text="Hi"))])
    with pytest.raises(InvalidArgument) as raised:
        await wire.runs.StartRun(runs_service_pb2.StartRunRequest(agent_id=AGENT, messages=[said], config=config))
    return raised.value.field


async def test_set_tool_approval_requires_a_tool_name(wire: "Wire") -> None:
    with pytest.raises(InvalidArgument) as raised:
        await wire.agents.SetToolApproval(A.SetToolApprovalRequest(agent_id=AGENT))
    assert raised.value.field == "tool_name"
    with pytest.raises(NotFound):
        await wire.agents.SetToolApproval(A.SetToolApprovalRequest(agent_id=AGENT, tool_name="x"))
