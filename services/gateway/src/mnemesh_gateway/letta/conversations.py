"""Conversations: create, retrieve, list, update, delete, fork, recompile, cancel, and their messages."""

from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from mnemesh.agents.v1 import agents_service_pb2 as agents_rpc
from mnemesh.agents.v1 import conversations_pb2 as pb
from mnemesh.agents.v1 import conversations_service_pb2 as rpc
from mnemesh.agents.v1 import runs_service_pb2 as runs_rpc
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.ids import derive_id, is_id
from mnemesh_kit.paging import whole_answer
from mnemesh_letta.convert.values import present, set_present, shown
from starlette.responses import Response

from mnemesh_gateway.http.errors import invalid_field, invalid_id
from mnemesh_gateway.letta.agent_messages import (
    COMPACTION_SECONDS,
    Compact,
    CompactionResponse,
    cancel_runs_of,
    compact_conversation_of,
    preview_request,
)
from mnemesh_gateway.letta.mesh import READ_SECONDS, Mesh, PageQuery, Stamped, cut, list_page
from mnemesh_gateway.letta.messages import ListMessages, messages_from_proto, shown_by
from mnemesh_gateway.letta.model_settings import settings_to_json, settings_to_proto
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, read
from mnemesh_gateway.letta.sending import SendMessages
from mnemesh_gateway.letta.turns import LettaResponse, Recipient, StreamRun, attach_to_run, reply_to


class Conversation(Stamped, kw_only=True):
    """A conversation."""

    id: str
    agent_id: str
    summary: str | None = None
    description: str | None = None
    archived: bool = False
    archived_at: datetime | None = None
    in_context_message_ids: list[str]
    isolated_block_ids: list[str]
    model: str | None = None
    model_settings: dict[str, Any] | None = None
    context_window_limit: int | None = None
    last_message_at: datetime | None = None


class ConversationFields(msgspec.Struct, kw_only=True):
    """What a client can set. A field that is null or absent stays as it is."""

    summary: str | None = None
    description: str | None = None
    model: str | None = None
    model_settings: dict[str, Any] | None = None
    context_window_limit: int | None = None


class CreateConversation(ConversationFields, kw_only=True):
    """A conversation to create."""

    isolated_block_labels: list[str] | None = None


class UpdateConversation(ConversationFields, kw_only=True):
    """Changes of a conversation."""

    archived: bool | None = None


class OfAgent(msgspec.Struct, kw_only=True):
    """The agent of a conversation that is named "default"."""

    agent_id: str | None = None


class CreateQuery(msgspec.Struct, kw_only=True):
    """The agent of a new conversation."""

    agent_id: str


class ForkQuery(OfAgent, kw_only=True):
    """Which part of a conversation is forked."""

    message_id: str | None = None


class RecompileQuery(msgspec.Struct, kw_only=True):
    """Whether the new text is stored."""

    dry_run: bool = False


class ListConversations(PageQuery, kw_only=True):
    """The query of a list of conversations."""

    agent_id: str | None = None
    summary_search: str | None = None
    archive_status: Literal["unarchived", "archived", "all"] = "unarchived"
    order_by: Literal["created_at", "last_run_completion", "last_message_at"] = "created_at"


class AttachToConversation(StreamRun, kw_only=True):
    """The run of a conversation to attach to: by id, by the otid of a message it was sent, or the active one."""

    agent_id: str | None = None
    run_id: str | None = None
    otid: str | None = None


operations = Operations()
_ORDERS: Final = {
    "created_at": rpc.CONVERSATION_ORDER_BY_CREATE_TIME,
    "last_run_completion": rpc.CONVERSATION_ORDER_BY_UPDATE_TIME,
    "last_message_at": rpc.CONVERSATION_ORDER_BY_LAST_MESSAGE_TIME,
}


@operations.post("/conversations/", optional_body=True)
async def create_conversation(call: Call[CreateQuery, CreateConversation]) -> Conversation:
    """Creates a conversation of an agent. Its only message is a system message."""
    conversation = pb.Conversation(agent_id=call.query.agent_id)
    _fields_to_proto(call.body, conversation)
    conversation.isolated_block_labels.extend(call.body.isolated_block_labels or ())
    request = rpc.CreateConversationRequest(conversation=conversation)
    created = await call.write(call.mesh.conversations.CreateConversation, request, seconds=COMPACTION_SECONDS)
    return await _read(call.mesh, created.conversation.id)


@operations.get("/conversations/")
async def list_conversations(call: Call[ListConversations, None]) -> list[Conversation]:
    """Lists conversations, newest first, without the agents' own."""
    query = call.query
    request = rpc.ListConversationsRequest(order_by=_ORDERS[query.order_by])
    archived = None if query.archive_status == "all" else query.archive_status == "archived"
    set_present(request, agent_id=query.agent_id, archived=archived, summary_search=query.summary_search)
    found = await list_page(call.mesh.conversations.ListConversations, request, "conversations", query, default="desc")
    return [conversation_from_proto(item) for item in found if not item.is_default]


@operations.get("/conversations/{conversation_id}")
async def retrieve_conversation(call: Call[OfAgent, None]) -> Conversation:
    """Returns a conversation."""
    return await _read(call.mesh, _id(call.path["conversation_id"], call.query.agent_id))


@operations.patch("/conversations/{conversation_id}")
async def update_conversation(call: Call[NoQuery, UpdateConversation]) -> Conversation:
    """Updates a conversation."""
    conversation = pb.Conversation(id=_id(call.path["conversation_id"], None))
    paths = _fields_to_proto(call.body, conversation)
    if call.body.archived is not None:
        conversation.archived = call.body.archived
        paths.add("archived")
    if paths:
        request = rpc.UpdateConversationRequest(request_id=call.request_id, conversation=conversation)
        request.update_mask.paths.extend(sorted(paths))
        await read(call.mesh.conversations.UpdateConversation, request)
    return await _read(call.mesh, conversation.id)


@operations.delete("/conversations/{conversation_id}")
async def delete_conversation(call: Call[NoQuery, None]) -> None:
    """Deletes a conversation. Messages that forks share stay."""
    conversation = await _read(call.mesh, _id(call.path["conversation_id"], None))
    request = rpc.DeleteConversationRequest(conversation_id=conversation.id)
    await call.write(call.mesh.conversations.DeleteConversation, request, seconds=COMPACTION_SECONDS)


@operations.post("/conversations/{conversation_id}/fork")
async def fork_conversation(call: Call[ForkQuery, None]) -> Conversation:
    """Creates a conversation with the messages of another under a new system message."""
    source = _id(call.path["conversation_id"], call.query.agent_id)
    request = rpc.ForkConversationRequest(conversation_id=source)
    set_present(request, until_message_id=call.query.message_id)
    fork = await call.write(call.mesh.conversations.ForkConversation, request, seconds=COMPACTION_SECONDS)
    return await _read(call.mesh, fork.conversation.id)


@operations.post("/conversations/{conversation_id}/recompile", optional_body=True)
async def recompile_conversation(call: Call[RecompileQuery, OfAgent]) -> str:
    """Renders the system message of a conversation again and returns its text."""
    conversation = await _read(call.mesh, _id(call.path["conversation_id"], call.body.agent_id))
    request = agents_rpc.RecompileAgentRequest(
        agent_id=conversation.agent_id,
        conversation_id=conversation.id,
        dry_run=call.query.dry_run,
    )
    return str((await call.write(call.mesh.agents.RecompileAgent, request, seconds=COMPACTION_SECONDS)).system_text)


@operations.post("/conversations/{conversation_id}/cancel")
async def cancel_conversation(call: Call[OfAgent, None]) -> dict[str, str]:
    """Cancels the runs of a conversation."""
    conversation = await _read(call.mesh, _id(call.path["conversation_id"], call.query.agent_id))
    request = runs_rpc.CancelRunsRequest(request_id=call.request_id, conversation_id=conversation.id)
    return await cancel_runs_of(call.mesh, request, conversation.id)


@operations.get("/conversations/{conversation_id}/messages")
async def list_conversation_messages(call: Call[ListMessages, None]) -> list[dict[str, Any]]:
    """Lists the messages of a conversation, newest first."""
    conversation_id = _id(call.path["conversation_id"], call.request.query_params.get("agent_id"))
    conversation, query = await _get(call.mesh, conversation_id, ids=True), call.query
    request = messages_service_pb2.ListMessagesRequest(
        agent_ids=[conversation.agent_id],
        conversation=messages_service_pb2.ConversationScope(conversation_id=conversation.id),
    )
    set_present(request, group_id=query.group_id, include_err=query.include_err)
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=query.order)
    if conversation.forked_from_id:
        rows = await _rows_of_fork(call.mesh, request, list(conversation.message_ids))
        page.order = "asc" if page.order == "asc" else "desc"
        return messages_from_proto(cut(rows, page, lambda row: row.id, limit=100), shown_by(query))
    rows = await list_page(call.mesh.messages.ListMessages, request, "messages", page, default="desc", limit=100)
    return messages_from_proto(rows, shown_by(query))


@operations.post("/conversations/{conversation_id}/messages")
async def send_conversation_message(call: Call[NoQuery, SendMessages]) -> LettaResponse | Response:
    """Sends messages to a conversation; streams the turn unless streaming=false."""
    stream = call.body.streaming is not False
    conversation_id = _id(call.path["conversation_id"], call.body.agent_id)
    agent_id = (await _get(call.mesh, conversation_id, ids=False)).agent_id
    return await reply_to(call, Recipient(agent_id, conversation_id), stream=stream)


@operations.post("/conversations/{conversation_id}/messages/preview-raw-payload")
async def preview_conversation_model_request(call: Call[NoQuery, SendMessages]) -> dict[str, Any]:
    """Returns the request to the provider that messages to a conversation would cause."""
    conversation_id = _id(call.path["conversation_id"], call.body.agent_id)
    agent_id = (await _get(call.mesh, conversation_id, ids=False)).agent_id
    return await preview_request(call.mesh, Recipient(agent_id, conversation_id), call.body)


@operations.post("/conversations/{conversation_id}/stream", optional_body=True)
async def retrieve_conversation_stream(call: Call[NoQuery, AttachToConversation]) -> Response:
    """Replays a run of a conversation, by default the one that is active, and follows it to its end."""
    body = call.body
    conversation_id = _id(call.path["conversation_id"], body.agent_id)
    run_id = body.run_id or await _run_of(call.mesh, conversation_id, body.otid)
    return await attach_to_run(call, run_id)


async def _run_of(mesh: Mesh, conversation_id: str, otid: str | None) -> str:
    if otid is not None:
        request = messages_service_pb2.ListMessagesRequest(page_size=1, otid=otid)
        found = (await read(mesh.messages.ListMessages, request)).messages
        if not found:
            raise NotFound(f"No run found for otid={otid}.", field="otid")
        return str(found[0].run_id)
    active = runs_rpc.RunFilter(conversation_id=conversation_id, active=True)
    newest = (await mesh.runs.ListRuns(runs_rpc.ListRunsRequest(page_size=1, filter=active), timeout=READ_SECONDS)).runs
    if not newest:
        raise InvalidArgument("No active runs found for this conversation.")
    return str(newest[0].id)


@operations.post("/conversations/{conversation_id}/compact", optional_body=True)
async def compact_conversation(call: Call[NoQuery, Compact]) -> CompactionResponse:
    """Compacts the window of a conversation."""
    conversation = await _read(call.mesh, _id(call.path["conversation_id"], call.body.agent_id))
    return await compact_conversation_of(call.mesh, conversation.agent_id, conversation.id, call.body, call.request_id)


def _id(given: str, agent_id: str | None) -> str:
    """Returns the id of a conversation; that of an agent's own for its id, or for "default" with the agent's id."""
    if is_id(given, "conv"):
        return given
    if is_id(given, "agent"):
        return derive_id("conv", given)
    if given != "default":
        raise invalid_id("conversation_id", "conv", given)
    if agent_id is None:
        raise invalid_field("agent_id is required for the conversation 'default'", "query", "agent_id")
    return derive_id("conv", agent_id)


async def _rows_of_fork(mesh: Mesh, written: messages_service_pb2.ListMessagesRequest, window: list[str]) -> list[Any]:
    """Returns the messages of a fork, its system message first: those that it shares are in its window only."""
    shared = messages_service_pb2.GetMessagesRequest(message_ids=window)
    found = await whole_answer(mesh.messages.GetMessages, shared, seconds=READ_SECONDS, field="messages")
    rows = {row.id: row for row in found.messages}
    own = await list_page(mesh.messages.ListMessages, written, "messages", PageQuery(), default="asc", limit=10_000)
    rows |= {row.id: row for row in own}
    return sorted(rows.values(), key=lambda row: (row.role != message_pb2.ROLE_SYSTEM, row.sequence_id))


async def _get(mesh: Mesh, conversation_id: str, *, ids: bool) -> pb.Conversation:
    request = rpc.GetConversationRequest(conversation_id=conversation_id, include_message_ids=ids)
    return (await read(mesh.conversations.GetConversation, request)).conversation


async def _read(mesh: Mesh, conversation_id: str) -> Conversation:
    return conversation_from_proto(await _get(mesh, conversation_id, ids=True))


def _fields_to_proto(body: ConversationFields, message: pb.Conversation) -> set[str]:
    given = {"summary": body.summary, "description": body.description, "model": body.model}
    set_present(message, **given)
    paths = {name for name, value in given.items() if value is not None}
    if body.model_settings is not None or body.context_window_limit is not None:
        settings_to_proto(body.model_settings or {}, message.model_settings, "body", "model_settings")
        set_present(message.model_settings, context_window=body.context_window_limit)
        paths.add("model_settings")
    return paths


def conversation_from_proto(item: pb.Conversation) -> Conversation:
    has_settings = item.HasField("model_settings")
    provider = item.model.partition("/")[0]
    return shown(
        Conversation,
        item,
        in_context_message_ids=list(item.message_ids),
        model_settings=settings_to_json(provider, item.model_settings) if has_settings else None,
        context_window_limit=present(item.model_settings, "context_window") if has_settings else None,
    )
