"""Messages as clients see them: list, retrieve, search."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import NotFound
from mnemesh_kit.paging import whole_answer
from mnemesh_letta.convert.messages import letta_calls, letta_image
from mnemesh_letta.convert.values import ROLE_NAMES, ROLES, moment_of, present, set_present

from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.mesh import READ_SECONDS, Mesh, PageQuery, list_page
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, read


class ListMessages(PageQuery, kw_only=True):
    """The query of a list of messages."""

    group_id: str | None = None
    conversation_id: str | None = None
    use_assistant_message: bool = True
    assistant_message_tool_name: str = "send_message"
    assistant_message_tool_kwarg: str = "message"
    include_err: bool | None = None
    include_return_message_types: list[str] | None = None


_PARTS: Final = 127
_OF_ANSWERS: Final = frozenset(
    {"reasoning_message", "hidden_reasoning_message", "assistant_message", "tool_call_message"}
)
"""The messages that are parts of a model's answer."""


def otid_of(message_id: str, index: int) -> str:
    """Returns the client's id of a part: the message's UUID with its low 7 bits replaced by the part's index."""
    value = UUID(message_id.partition("-")[2]).int
    return str(UUID(int=(value & ~_PARTS) | min(index, _PARTS)))


def content_from_proto(parts: Sequence[pb.ContentPart]) -> str | list[dict[str, Any]]:
    """Returns a content: a text if it is one, otherwise a list of parts."""
    if all(part.HasField("text") for part in parts):
        return "".join(part.text.text for part in parts)
    return [_part(part) for part in parts if part.WhichOneof("part") in {"text", "image"}]


def text_of(parts: Iterable[pb.ContentPart]) -> str:
    return "".join(part.text.text for part in parts if part.HasField("text"))


def _part(part: pb.ContentPart) -> dict[str, Any]:
    if part.HasField("text"):
        return {"type": "text", "text": part.text.text}
    return {"type": "image", "source": letta_image(part.image) | {"detail": present(part.image, "detail")}}


def calls_from_proto(calls: Iterable[pb.ToolCall]) -> dict[str, Any]:
    """Returns the fields of a message with tool calls. The first stands in the field of older clients, too."""
    found = [{"name": call.name, "arguments": call.arguments, "tool_call_id": call.id} for call in calls]
    return {"tool_call": found[0] if found else None, "tool_calls": found}


def returns_from_proto(returns: Sequence[pb.ToolReturn]) -> dict[str, Any]:
    """Returns the fields of a message with tool returns. The first stands in the fields of older clients, too."""
    found = [return_from_proto(item) for item in returns]
    first = found[0] if found else {}
    name = returns[0].name if returns else ""
    text = first.get("tool_return")
    return {
        "tool_return": text if isinstance(text, str) else "".join(p.get("text", "") for p in text or ()),
        "status": first.get("status", "success"),
        "tool_call_id": first.get("tool_call_id", ""),
        "stdout": first.get("stdout"),
        "stderr": first.get("stderr"),
        "tool_returns": found,
    } | ({"name": name} if name else {})


def return_from_proto(item: pb.ToolReturn) -> dict[str, Any]:
    return {
        "type": "tool",
        "tool_return": content_from_proto(item.content),
        "status": "error" if item.status == pb.TOOL_RETURN_STATUS_ERROR else "success",
        "tool_call_id": item.tool_call_id,
        "stdout": output_of(item.stdout),
        "stderr": output_of(item.stderr),
    }


def output_of(lines: Iterable[str]) -> list[str] | None:
    """Returns what a tool printed as one text; None if it printed nothing."""
    text = "\n".join(lines)
    return [text] if text else None


def decisions_from_proto(decisions: Sequence[pb.ApprovalDecision]) -> dict[str, Any]:
    """Returns the fields of an answer to a request for approval. The first decision of a person is in those of older
    clients, too, where the id of its call is `approval_request_id`."""
    found: list[dict[str, Any]] = []
    for decision in decisions:
        kind = decision.WhichOneof("decision")
        if kind == "client_return":
            returned = return_from_proto(decision.client_return)
            found.append(returned | {"tool_call_id": decision.tool_call_id})
        else:
            reason = present(decision.deny, "reason") if kind == "deny" else None
            found.append(
                {
                    "type": "approval",
                    "tool_call_id": decision.tool_call_id,
                    "approve": kind == "approve",
                    "reason": reason,
                }
            )
    first = next((item for item in found if item["type"] == "approval"), {})
    return {
        "approvals": found,
        "approve": first.get("approve"),
        "approval_request_id": first.get("tool_call_id"),
        "reason": first.get("reason"),
    }


@dataclass(frozen=True, slots=True)
class Shown:
    """How messages are shown: whether the words of a tool are the assistant's, and which types are left out."""

    speaks: bool = True
    tool: str = "send_message"
    argument: str = "message"
    types: frozenset[str] | None = None

    def has(self, message_type: str) -> bool:
        return self.types is None or message_type in self.types


def messages_from_proto(messages: Iterable[pb.Message], shown: Shown) -> list[dict[str, Any]]:
    """Returns stored messages as those that clients see, in the order of the stored ones.

    Words that a tool says are the assistant's; the return of that call is then left out, unless it is an error.
    """
    stored = list(messages)
    said = {call.id for message in stored for call in message.tool_calls if spoken(call, shown) is not None}
    parts = [part for message in stored for part in _parts(_without_returns(message, said), shown)]
    return [part for part in with_whole_requests(parts) if shown.has(part["message_type"])]


def with_whole_requests(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages in which all of a step that asks for an approval have the id of the request.

    A call that waits for approval is in the request only.
    """
    requests = {m["step_id"]: m for m in messages if m["message_type"] == "approval_request_message" and m["step_id"]}
    found = []
    for message in messages:
        request = requests.get(message["step_id"])
        if request is None or message["message_type"] not in _OF_ANSWERS:
            found.append(message)
            continue
        joined = message | {"id": request["id"]}
        if message["message_type"] == "tool_call_message":
            waiting = {call["tool_call_id"] for call in request["tool_calls"]}
            calls = [call for call in message["tool_calls"] if call["tool_call_id"] not in waiting]
            if not calls:
                continue
            joined |= {"tool_calls": calls, "tool_call": calls[0]}
        found.append(joined)
    return found


def _without_returns(message: pb.Message, said: Collection[str]) -> pb.Message:
    """Returns the message without successful returns of some calls."""
    if message.role != pb.ROLE_TOOL or not any(item.tool_call_id in said for item in message.tool_returns):
        return message
    error = pb.TOOL_RETURN_STATUS_ERROR
    kept = [item for item in message.tool_returns if item.tool_call_id not in said or item.status == error]
    rest = pb.Message()
    rest.CopyFrom(message)
    del rest.tool_returns[:]
    rest.tool_returns.extend(kept)
    return rest


def _parts(message: pb.Message, shown: Shown) -> list[dict[str, Any]]:
    base = _base(message)
    match message.role:
        case pb.ROLE_SYSTEM:
            return [base | {"message_type": "system_message", "content": text_of(message.content)}]
        case pb.ROLE_USER:
            return [base | {"message_type": "user_message", "content": content_from_proto(message.content)}]
        case pb.ROLE_SUMMARY:
            # Clients of Letta's read a stored summary as the user's; only streams have messages for summaries.
            return [base | {"message_type": "user_message", "content": text_of(message.content)}]
        case pb.ROLE_TOOL if not message.tool_returns:
            return []
        case pb.ROLE_TOOL:
            return [base | {"message_type": "tool_return_message"} | returns_from_proto(message.tool_returns)]
        case pb.ROLE_APPROVAL if message.HasField("approval_request_id"):
            fields = decisions_from_proto(message.approval_decisions)
            return [base | {"message_type": "approval_response_message"} | fields]
        case pb.ROLE_APPROVAL:
            return [base | {"message_type": "approval_request_message"} | calls_from_proto(message.tool_calls)]
    return _answer(message, base, shown)


def _base(message: pb.Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "date": moment_of(message, "create_time"),
        "name": present(message, "name"),
        "otid": message.otid if message.HasField("otid") else otid_of(message.id, 0),
        "sender_id": present(message, "sender_id"),
        "step_id": present(message, "step_id"),
        "is_err": present(message, "is_err"),
        "seq_id": None,
        "run_id": present(message, "run_id"),
    }


def _answer(message: pb.Message, base: dict[str, Any], shown: Shown) -> list[dict[str, Any]]:
    """Returns the parts of an assistant's message: reasoning and words in order, then calls."""
    found: list[dict[str, Any]] = []

    def add(message_type: str, **fields: Any) -> None:
        found.append(base | {"otid": otid_of(message.id, len(found)), "message_type": message_type} | fields)

    words: list[pb.ContentPart] = []
    for part in message.content:
        kind = part.WhichOneof("part")
        if kind in {"text", "image"}:
            words.append(part)
            continue
        if words:
            add("assistant_message", content=content_from_proto(words))
            words = []
        _add_reasoning(add, part)
    if words:
        add("assistant_message", content=content_from_proto(words))
    calls: list[pb.ToolCall] = []
    for call in message.tool_calls:
        said = spoken(call, shown)
        if said is None:
            calls.append(call)
            continue
        if calls:
            add("tool_call_message", **calls_from_proto(calls))
            calls = []
        add("assistant_message", content=said)
    if calls:
        add("tool_call_message", **calls_from_proto(calls))
    return found


def _add_reasoning(add: Any, part: pb.ContentPart) -> None:
    match part.WhichOneof("part"):
        case "reasoning":
            source = "reasoner_model" if part.reasoning.is_native else "non_reasoner_model"
            signature = present(part.reasoning, "signature")
            add("reasoning_message", reasoning=part.reasoning.text, source=source, signature=signature)
        case "summarized_reasoning" if part.summarized_reasoning.summaries:
            text = "\n".join(part.summarized_reasoning.summaries)
            add("reasoning_message", reasoning=text, source="reasoner_model", signature=None)
        case "redacted_reasoning":
            data = part.redacted_reasoning.data
            add("hidden_reasoning_message", state="redacted", hidden_reasoning=data)
        case _:
            add("hidden_reasoning_message", state="omitted", hidden_reasoning=None)


def spoken(call: pb.ToolCall, shown: Shown) -> str | None:
    """Returns the words that a call says to the user; None if it says none."""
    if not shown.speaks or call.name != shown.tool:
        return None
    try:
        arguments = msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        return None
    text = arguments.get(shown.argument) if isinstance(arguments, dict) else None
    return text if isinstance(text, str) else None


def internal_from_proto(message: pb.Message) -> dict[str, Any]:
    """Returns a message as it is stored, for steps and context windows."""
    content = content_from_proto(message.content)
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {
        **_base(message),
        "created_at": moment_of(message, "create_time"),
        "role": ROLE_NAMES.get(message.role, "user"),
        "agent_id": message.agent_id,
        "conversation_id": present(message, "conversation_id"),
        "model": present(message, "model"),
        "content": parts,
        "tool_calls": letta_calls(message.tool_calls) or None,
        "tool_returns": [return_from_proto(item) for item in message.tool_returns],
        "group_id": present(message, "group_id"),
    }


def scope_of(conversation_id: str, agent_id: str) -> rpc.ConversationScope:
    """Returns the scope of a conversation; "default" and the agent's id are the agent's own."""
    if conversation_id in {"default", agent_id}:
        return rpc.ConversationScope(default_conversation=rpc.DefaultConversation())
    return rpc.ConversationScope(conversation_id=conversation_id)


def shown_by(query: ListMessages) -> Shown:
    """Returns how a list shows messages."""
    types = query.include_return_message_types
    return Shown(
        speaks=query.use_assistant_message,
        tool=query.assistant_message_tool_name,
        argument=query.assistant_message_tool_kwarg,
        types=frozenset(types) if types is not None else None,
    )


operations = Operations()
_MODES: Final = {
    "vector": rpc.SEARCH_MODE_VECTOR,
    "fts": rpc.SEARCH_MODE_TEXT,
    "hybrid": rpc.SEARCH_MODE_HYBRID,
}
_FOUND: Final = frozenset({"system_message", "user_message", "assistant_message", "reasoning_message"})
_TEXTS: Final = ("content", "reasoning")


class SearchScope(msgspec.Struct, kw_only=True):
    """How and where to search."""

    search_mode: Literal["vector", "fts", "hybrid"] = "hybrid"
    agent_id: str | None = None
    conversation_id: str | None = None
    limit: int = 50
    start_date: datetime | None = None
    end_date: datetime | None = None


class SearchMessages(SearchScope, kw_only=True):
    """The query and the scope of a search."""

    query: str


class SearchStored(SearchScope, kw_only=True):
    """The query and the scope of a search. Without a query, the newest messages are found."""

    query: str | None = None
    roles: list[Literal["system", "user", "assistant", "tool"]] = msgspec.field(default_factory=list)


@operations.get("/messages/")
async def list_all_messages(call: Call[ListMessages, None]) -> list[dict[str, Any]]:
    """Lists the messages of all agents, newest first."""
    query = call.query
    request = rpc.ListMessagesRequest()
    if query.conversation_id is not None:
        request.conversation.conversation_id = query.conversation_id
    rows = await list_page(call.mesh.messages.ListMessages, request, "messages", query, default="desc", limit=100)
    return messages_from_proto(rows, shown_by(query))


@operations.get("/messages/{message_id}")
async def retrieve_message(call: Call[NoQuery, None]) -> list[dict[str, Any]]:
    """Returns what clients see of a stored message."""
    request = rpc.GetMessagesRequest(message_ids=[call.path["message_id"]])
    found = (await read(call.mesh.messages.GetMessages, request)).messages
    if not found:
        raise NotFound(f"There is no message {call.path['message_id']}.")
    return messages_from_proto(found, Shown())


@operations.post("/messages/search")
async def search_all_messages(call: Call[NoQuery, SearchMessages]) -> list[dict[str, Any]]:
    """Searches messages by meaning and by words, best first."""
    hits = await _hits(call.mesh, call.body, call.body.query)
    return [
        {
            "message_type": part["message_type"],
            "message_id": part["id"],
            "agent_id": hit.message.agent_id,
            "conversation_id": hit.message.conversation_id or None,
            "created_at": part["date"],
            **{name: part[name] for name in _TEXTS if name in part},
        }
        for hit in hits
        for part in messages_from_proto([hit.message], Shown(types=_FOUND))
    ]


@operations.post("/agents/messages/search")
async def search_messages(call: Call[NoQuery, SearchStored]) -> list[dict[str, Any]]:
    """Searches messages by meaning and by words, best first, and returns them as they are stored."""
    return [
        {
            "embedded_text": hit.text,
            "message": internal_from_proto(hit.message),
            "fts_rank": present(hit, "text_rank"),
            "vector_rank": present(hit, "vector_rank"),
            "rrf_score": hit.score,
        }
        for hit in await _hits(call.mesh, call.body, call.body.query or "", call.body.roles)
    ]


async def _hits(mesh: Mesh, body: SearchScope, query: str, roles: Sequence[str] = ()) -> list[rpc.MessageHit]:
    if not 1 <= body.limit <= 100:
        raise invalid_field("Input should be between 1 and 100", "body", "limit")
    request = rpc.SearchMessagesRequest(
        query=query,
        mode=_MODES[body.search_mode],
        limit=body.limit,
        roles=[ROLES[role] for role in roles],
    )
    set_present(
        request,
        agent_id=body.agent_id,
        start_date=body.start_date.isoformat() if body.start_date else None,
        end_date=body.end_date.isoformat() if body.end_date else None,
    )
    if body.conversation_id is not None:
        request.conversation.CopyFrom(scope_of(body.conversation_id, body.agent_id or ""))
    return list((await whole_answer(mesh.messages.SearchMessages, request, seconds=READ_SECONDS)).hits)
