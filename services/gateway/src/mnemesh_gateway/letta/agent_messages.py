"""Messages of an agent: send, stream, list, cancel, correct, compact, reset, preview."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from mnemesh.agents.v1 import agents_service_pb2 as agents_rpc
from mnemesh.agents.v1 import runs_service_pb2 as runs_rpc
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import FailedPrecondition, NotFound
from mnemesh_letta.convert.values import json_value, set_present
from starlette.responses import Response

from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.agent_states import AgentState, read_state
from mnemesh_gateway.letta.mesh import READ_SECONDS, Mesh, list_chronologically
from mnemesh_gateway.letta.messages import ListMessages, Shown, messages_from_proto, scope_of, shown_by, spoken
from mnemesh_gateway.letta.model_settings import CompactionSettings, compaction_to_proto
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, Profile, json_response, read
from mnemesh_gateway.letta.runs import Run, run_from_proto
from mnemesh_gateway.letta.sending import SendMessages, check_streaming, config_to_proto, content_to_proto, sent_of
from mnemesh_gateway.letta.turns import LettaResponse, Recipient, reply_to, start_run


class CorrectMessage(msgspec.Struct, kw_only=True):
    """One of the messages that clients see, with new words: `reasoning` of a reasoning message, else `content`."""

    message_type: str
    content: Any = None
    reasoning: str | None = None


class CancelRuns(msgspec.Struct, kw_only=True):
    """The runs to cancel; null cancels those of the agent."""

    run_ids: list[str] | None = None


class ResetMessages(msgspec.Struct, kw_only=True):
    """How to reset a window."""

    add_default_initial_messages: bool = False


class Compact(msgspec.Struct, kw_only=True):
    """How to compact a conversation."""

    compaction_settings: CompactionSettings | None = None
    agent_id: str | None = None


class CompactionResponse(msgspec.Struct, kw_only=True):
    """What a compaction did."""

    summary: str
    num_messages_before: int
    num_messages_after: int


_CORRECTED_ROLES: Final = {
    "user_message": pb.ROLE_USER,
    "system_message": pb.ROLE_SYSTEM,
    "assistant_message": pb.ROLE_ASSISTANT,
    "reasoning_message": pb.ROLE_ASSISTANT,
}


def correction_to_proto(stored: pb.Message, body: CorrectMessage, request_id: str) -> rpc.UpdateMessageRequest:
    """Returns the request that changes a stored message.

    Args:
        stored: the message as it is.
        body: the message that a client sees, with its new words.
        request_id: of the request.

    Raises:
        ValidationFailed: the type is unknown or not one of the stored message's, or the words are missing.
    """
    if body.message_type not in _CORRECTED_ROLES:
        raise invalid_field(f"Input should be one of {', '.join(_CORRECTED_ROLES)}", "body", "message_type")
    if stored.role != _CORRECTED_ROLES[body.message_type]:
        raise _another_type(body)
    changed = pb.Message()
    changed.CopyFrom(stored)
    match body.message_type:
        case "reasoning_message":
            path = _set_reasoning(changed, body)
        case "assistant_message":
            path = _set_words(changed, body)
        case _:
            path = _set_content(changed, content_to_proto(body.content, "body", "content"), _is_content)
    request = rpc.UpdateMessageRequest(request_id=request_id, message=changed)
    request.update_mask.paths.append(path)
    return request


def _set_words(message: pb.Message, body: CorrectMessage) -> str:
    """Replaces what the agent said: the argument of its call of send_message, or its text."""
    for call in message.tool_calls:
        if spoken(call, Shown()) is not None:
            if not isinstance(body.content, str):
                raise invalid_field("Input should be a valid string", "body", "content")
            arguments = msgspec.json.decode(call.arguments)
            call.arguments = msgspec.json.encode(arguments | {Shown().argument: body.content}).decode()
            return "tool_calls"
    if not any(map(_is_content, message.content)):
        raise _another_type(body)
    return _set_content(message, content_to_proto(body.content, "body", "content"), _is_content)


def _set_reasoning(message: pb.Message, body: CorrectMessage) -> str:
    """Replaces the reasoning. The provider's signature, which is that of the earlier text, is left out."""
    if body.reasoning is None:
        raise invalid_field("Field required", "body", "reasoning")
    parts = [part for part in message.content if _is_reasoning(part)]
    if not parts:
        raise _another_type(body)
    reasoning = pb.ReasoningPart(text=body.reasoning, is_native=parts[0].reasoning.is_native)
    return _set_content(message, [pb.ContentPart(reasoning=reasoning)], _is_reasoning)


def _set_content(message: pb.Message, new: list[pb.ContentPart], is_replaced: Callable[[Any], bool]) -> str:
    """Replaces parts of the content; the new ones are where the first of them was."""
    parts = list(message.content)
    place = next((index for index, part in enumerate(parts) if is_replaced(part)), len(parts))
    kept = [part for part in parts[place:] if not is_replaced(part)]
    del message.content[:]
    message.content.extend([*parts[:place], *new, *kept])
    return "content"


def _is_content(part: pb.ContentPart) -> bool:
    return part.WhichOneof("part") in {"text", "image"}


def _is_reasoning(part: pb.ContentPart) -> bool:
    return part.WhichOneof("part") == "reasoning"


def _another_type(body: CorrectMessage) -> Exception:
    return invalid_field(f"The message is no {body.message_type}.", "body", "message_type")


operations = Operations()
COMPACTION_SECONDS: Final = 120.0


class NoActiveRuns(FailedPrecondition):
    """There is no run to cancel."""

    reason = "NO_ACTIVE_RUNS_TO_CANCEL"


@operations.post("/agents/{agent_id}/messages")
async def send_message(call: Call[NoQuery, SendMessages]) -> LettaResponse | Response:
    """Sends messages and returns the turn; with streaming=true as server-sent events."""
    check_streaming(call.body, streams=False)
    recipient = Recipient(call.path["agent_id"])
    return await reply_to(call, recipient, stream=bool(call.body.streaming))


@operations.post("/agents/{agent_id}/messages/stream")
async def send_message_streaming(call: Call[NoQuery, SendMessages]) -> LettaResponse | Response:
    """Sends messages and streams the turn."""
    return await reply_to(call, Recipient(call.path["agent_id"]), stream=True)


@operations.post("/agents/{agent_id}/messages/async")
async def send_message_async(call: Call[NoQuery, SendMessages]) -> Run:
    """Sends messages and returns the run, which continues in the background."""
    return run_from_proto(await start_run(call.mesh, Recipient(call.path["agent_id"]), call.body, call.request_id))


@operations.get("/agents/{agent_id}/messages")
async def list_messages(call: Call[ListMessages, None]) -> list[dict[str, Any]]:
    """Lists messages of an agent in chronological order: the newest, or the oldest for `order=asc`."""
    query, agent_id = call.query, call.path["agent_id"]
    await call.mesh.agents.GetAgent(agents_rpc.GetAgentRequest(agent_id=agent_id), timeout=READ_SECONDS)
    request = rpc.ListMessagesRequest(agent_ids=[agent_id])
    set_present(request, group_id=query.group_id, include_err=query.include_err)
    if query.conversation_id is not None:
        request.conversation.CopyFrom(scope_of(query.conversation_id, agent_id))
    rows = await list_chronologically(call.mesh.messages.ListMessages, request, "messages", query, limit=100)
    return messages_from_proto(rows, shown_by(query))


@operations.post("/agents/{agent_id}/messages/cancel", optional_body=True)
async def cancel_message(call: Call[NoQuery, CancelRuns]) -> dict[str, str]:
    """Cancels runs of an agent."""
    request = runs_rpc.CancelRunsRequest(request_id=call.request_id)
    if call.body.run_ids:
        request.runs.run_ids.extend(call.body.run_ids)
    else:
        request.agent_id = call.path["agent_id"]
    return await cancel_runs_of(call.mesh, request, call.path["agent_id"])


@operations.post("/agents/{agent_id}/messages/preview-raw-payload")
async def preview_model_request(call: Call[NoQuery, SendMessages]) -> dict[str, Any]:
    """Returns the request to the provider that messages would cause."""
    return await preview_request(call.mesh, Recipient(call.path["agent_id"]), call.body)


@operations.patch("/agents/{agent_id}/reset-messages", optional_body=True)
async def reset_messages(call: Call[ResetMessages, ResetMessages]) -> AgentState:
    """Removes all messages but the system message from the window. They stay in recall."""
    request = agents_rpc.ResetMessagesRequest(
        agent_id=call.path["agent_id"],
        # Clients before 1.0 send it in the query.
        add_default_initial_messages=call.body.add_default_initial_messages or call.query.add_default_initial_messages,
    )
    await call.write(call.mesh.agents.ResetMessages, request, seconds=COMPACTION_SECONDS)
    return await read_state(call.mesh, call.path["agent_id"])


@operations.post("/agents/{agent_id}/summarize", optional_body=True)
async def summarize_messages(call: Call[NoQuery, Compact]) -> CompactionResponse | Response:
    """Compacts the window of an agent. The answer of the release 0.16.1 has no body."""
    done = await compact_conversation_of(call.mesh, call.path["agent_id"], None, call.body, call.request_id)
    return Response(status_code=204) if call.profile is Profile.LETTA_0_16_1 else done


@operations.patch("/agents/{agent_id}/messages/{message_id}")
@operations.patch("/groups/{group_id}/messages/{message_id}")
async def modify_message(call: Call[NoQuery, CorrectMessage]) -> dict[str, Any] | Response:
    """Replaces the words of a message in the profile 0.16.1; the release 0.16.7 refuses to."""
    if call.profile is not Profile.LETTA_0_16_1:
        detail = "Message editing is no longer supported. Several conversations can have the same message."
        return json_response({"detail": detail}, 405)
    wanted = rpc.GetMessagesRequest(message_ids=[call.path["message_id"]])
    stored = (await read(call.mesh.messages.GetMessages, wanted)).messages
    owner = call.path.get("agent_id", call.path.get("group_id"))
    if not stored or owner not in {stored[0].agent_id, stored[0].group_id}:
        raise NotFound(f"There is no message {call.path['message_id']} of {owner}.")
    request = correction_to_proto(stored[0], call.body, call.request_id)
    changed = (await read(call.mesh.messages.UpdateMessage, request)).message
    shown = messages_from_proto([changed], Shown(types=frozenset({call.body.message_type})))
    return shown[0]


async def preview_request(mesh: Mesh, recipient: Recipient, body: SendMessages) -> dict[str, Any]:
    """Returns the request to the provider that messages would cause. Nothing is stored."""
    request = agents_rpc.PreviewRequestRequest(
        agent_id=recipient.agent_id, messages=sent_of(body).messages, config=config_to_proto(body)
    )
    set_present(request, conversation_id=recipient.conversation_id)
    response = await read(mesh.agents.PreviewRequest, request)
    payload: dict[str, Any] = json_value(response.request_body)
    return payload


async def cancel_runs_of(mesh: Mesh, request: runs_rpc.CancelRunsRequest, owner: str) -> dict[str, str]:
    """Cancels runs; returns "cancelled" or "failed" for each. Raises NoActiveRuns if there is none."""
    response = await read(mesh.runs.CancelRuns, request)
    if not response.outcomes:
        raise NoActiveRuns(f"No active runs to cancel for {owner}")
    ok = runs_rpc.CANCEL_OUTCOME_CANCELLED
    return {run_id: "cancelled" if outcome == ok else "failed" for run_id, outcome in response.outcomes.items()}


async def compact_conversation_of(
    mesh: Mesh, agent_id: str, conversation_id: str | None, body: Compact, key: str
) -> CompactionResponse:
    request = agents_rpc.CompactConversationRequest(request_id=key, agent_id=agent_id)
    set_present(request, conversation_id=conversation_id)
    if body.compaction_settings is not None:
        request.settings.CopyFrom(compaction_to_proto(body.compaction_settings, "body", "compaction_settings"))
    response = await mesh.agents.CompactConversation(request, timeout=COMPACTION_SECONDS)
    result = response.result
    return CompactionResponse(
        summary=result.summary,
        num_messages_before=result.messages_before,
        num_messages_after=result.messages_after,
    )
