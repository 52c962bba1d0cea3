"""Answers to requests for approval, and what a repeated answer continues."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from mnemesh.agents.v1 import agents_service_pb2, runs_pb2, runs_service_pb2
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import runs
from mnemesh_kit.errors import NotFound

from mnemesh_gateway.letta.convert.sending import Sent, blanket_decisions, content_to_proto
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.pages import READ_SECONDS

PATIENCE: Final = 60.0
ACCEPTANCE: Final = 5.0
_CUT_OFF: Final = frozenset({runs_pb2.RUN_STATUS_CANCELLED, runs_pb2.RUN_STATUS_FAILED})
_CONTINUE: Final = (
    "<system-alert>Automatic keep-alive message without content. Continue where you stopped.</system-alert>"
)

Events = AsyncGenerator[runs_pb2.RunEvent, None]


@dataclass(frozen=True, slots=True)
class Recipient:
    """The recipient of messages: an agent, optionally with a conversation; a conversation alone; or a group."""

    agent_id: str = ""
    conversation_id: str | None = None
    group_id: str | None = None


async def answering(mesh: Mesh, recipient: Recipient, sent: Sent, config: runs_pb2.RunConfig, key: str) -> Events:
    """Answers a request for approval and returns the events of the run.

    An answer that is sent again has the run of the first one. If that was cancelled or failed, a client that sends its
    answer again wants the turn to go on: a new run does that, with the messages of the answer.
    """
    answer = await _answer(mesh, recipient, sent, config, key)
    events = runs.send(mesh.runs, answer, PATIENCE, ACCEPTANCE)
    try:
        first = await anext(events)
        if not (first.accepted.replayed and await _was_cut_off(mesh, first.run_id)):
            return _from(first, events)
    except BaseException:
        await events.aclose()
        raise
    await events.aclose()
    request = runs_service_pb2.SendMessageRequest(
        request_id=f"{key}-continuation",
        agent_id=recipient.agent_id,
        conversation_id=recipient.conversation_id,
        messages=sent.messages or [_keep_alive()],
        config=config,
    )
    return runs.send(mesh.runs, request, PATIENCE, ACCEPTANCE)


async def _from(first: runs_pb2.RunEvent, events: Events) -> Events:
    try:
        yield first
        async for event in events:
            yield event
    finally:
        await events.aclose()


async def _was_cut_off(mesh: Mesh, run_id: str) -> bool:
    request = runs_service_pb2.GetRunRequest(run_id=run_id)
    return (await mesh.runs.GetRun(request, timeout=READ_SECONDS)).run.status in _CUT_OFF


def _keep_alive() -> runs_pb2.InputMessage:
    content = content_to_proto(_CONTINUE, "body", "messages")
    return runs_pb2.InputMessage(role=message_pb2.ROLE_USER, content=content)


async def _answer(
    mesh: Mesh, recipient: Recipient, sent: Sent, config: runs_pb2.RunConfig, key: str
) -> runs_service_pb2.AnswerApprovalRequest:
    if recipient.group_id is not None:
        raise invalid_field("An approval is answered to the agent that asked, not to its group.", "body", "messages")
    decisions = list(sent.decisions)
    if sent.blanket is not None:
        request_id = sent.approval_request_id or await _pending(mesh, recipient.agent_id)
        found = messages_service_pb2.GetMessagesRequest(message_ids=[request_id])
        messages = (await mesh.messages.GetMessages(found, timeout=READ_SECONDS)).messages
        decisions += blanket_decisions(sent, [call for message in messages for call in message.tool_calls])
    return runs_service_pb2.AnswerApprovalRequest(
        request_id=key,
        agent_id=recipient.agent_id,
        conversation_id=recipient.conversation_id,
        approval_request_id=sent.approval_request_id,
        decisions=decisions,
        messages=sent.messages,
        config=config,
    )


async def _pending(mesh: Mesh, agent_id: str) -> str:
    request = agents_service_pb2.GetAgentRequest(agent_id=agent_id)
    agent = (await mesh.agents.GetAgent(request, timeout=READ_SECONDS)).agent
    if not agent.HasField("pending_approval_request_id"):
        raise NotFound(f"{agent_id} waits for no approval.")
    return agent.pending_approval_request_id
