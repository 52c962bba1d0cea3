"""Servers whose answers are lists of blocks or items: Anthropic's messages and OpenAI's Responses."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_testkit.fakes.server import Reply, pieces

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a stream: a document, or lines as they are, such as a comment. `name` is its `event` field."""

    data: dict[str, Any] | str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Wire:
    """The stream of one server.

    `type` is the provider's type in mnemesh, and `api` is "chat", "responses" or "messages". `events` returns the
    stream for a reply; the number of the answer makes its ids unique. `problem` returns the words with which the server
    refuses a request, given the replies that it has sent so far; None if it accepts it. `body` returns the answer that
    is not streamed, if the wire has one.
    """

    name: str
    type: str
    api: str
    events: Callable[[Reply, int], list[Event]]
    problem: Callable[[Body, Sequence[Reply]], str | None]
    body: Callable[[Reply, int], dict[str, Any]] | None = None


def encoded(events: Sequence[Event], line_end: str = "\n") -> bytes:
    """Returns the bytes of a stream."""
    lines = list[str]()
    for event in events:
        if isinstance(event.data, str):
            lines += event.data.split("\n")
        else:
            lines += [f"event: {event.name}"] if event.name else []
            lines += [f"data: {json.dumps(event.data, ensure_ascii=False)}", ""]
    return "".join(f"{line}{line_end}" for line in lines).encode()


def arguments_of(call: Any) -> str:
    """Returns the arguments of a reply's call as the model wrote them."""
    return call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))


def _signature(number: int) -> str:
    return f"c2ln{number}"


def _messages(
    reply: Reply, number: int, *, prefix: str = "", names: bool = True, last: Mapping[str, Any] | None = None
) -> list[Event]:
    """The stream of a message. Some proxies send no names of events."""
    events = list[Event]()

    def add(kind: str, **data: Any) -> None:
        events.append(Event({"type": kind, **data}, kind if names else None))

    def add_block(block: dict[str, Any], deltas: list[dict[str, Any]]) -> None:
        index = sum(isinstance(e.data, dict) and e.data["type"] == "content_block_stop" for e in events)
        add("content_block_start", index=index, content_block=block)
        for delta in deltas:
            add("content_block_delta", index=index, delta=delta)
        add("content_block_stop", index=index)

    usage = {"input_tokens": 11, "cache_read_input_tokens": 0, "output_tokens": 1}
    head: dict[str, Any] = {
        "id": f"msg_{prefix}{number}",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
    }
    add("message_start", message={**head, "stop_reason": None, "usage": usage})
    add("ping")
    if reply.reasoning:
        thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(reply.reasoning, 6)]
        signed = {"type": "signature_delta", "signature": _signature(number)}
        add_block({"type": "thinking", "thinking": "", "signature": ""}, [*thoughts, signed])
    if reply.text:
        add_block({"type": "text", "text": ""}, [{"type": "text_delta", "text": p} for p in pieces(reply.text, 6)])
    for ordinal, call in enumerate(reply.calls):
        texts = ["", *pieces(arguments_of(call), 5)]
        block = {"type": "tool_use", "id": f"toolu_{prefix}{number}_{ordinal}", "name": call.name, "input": {}}
        add_block(block, [{"type": "input_json_delta", "partial_json": text} for text in texts])
    stop = {"stop_reason": reply.finish_reason or ("tool_use" if reply.calls else "end_turn"), "stop_sequence": None}
    add("message_delta", delta=stop, usage={"output_tokens": 7})
    add("message_stop", **(last or {}))
    return events


def _bedrock(reply: Reply, number: int) -> list[Event]:
    metrics = {"inputTokenCount": 11, "outputTokenCount": 7}
    return _messages(reply, number, prefix="bdrk_", last={"amazon-bedrock-invocationMetrics": metrics})


def _nameless(reply: Reply, number: int) -> list[Event]:
    return _messages(reply, number, names=False)


def _messages_problem(body: Body, sent: Sequence[Reply]) -> str | None:
    messages = body["messages"]
    roles = [message["role"] for message in messages]
    if any(one == two for one, two in itertools.pairwise(roles)) or roles[0] != "user":
        return "messages: roles must alternate between user and assistant"
    known = {_signature(number): reply.reasoning for number, reply in enumerate(sent)}
    open_ids = list[str]()
    for number, message in enumerate(messages):
        blocks = message["content"]
        if not blocks or any(block["type"] == "text" and not block["text"].strip() for block in blocks):
            return f"messages.{number}: text content blocks must contain non-whitespace text"
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(results) != sorted(open_ids):
            return f"messages.{number}: tool_use ids were found without tool_result blocks immediately after"
        open_ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
        thoughts = [block for block in blocks if block["type"] == "thinking"]
        if any(known.get(block["signature"]) != block["thinking"] for block in thoughts):
            return f"messages.{number}: thinking blocks in the latest assistant message cannot be modified"
        is_thinking = (body.get("thinking") or {}).get("type") in ("enabled", "adaptive")
        if is_thinking and open_ids and blocks[0]["type"] != "thinking":
            return f"messages.{number}.content.0: a final assistant message must start with a thinking block"
    return None


def _responses(
    reply: Reply, number: int, *, encrypted: bool = True, changes_ids: bool = False, closes: bool = True
) -> list[Event]:
    """The stream of a response."""
    events, output = list[Event](), list[dict[str, Any]]()

    def add(kind: str, **data: Any) -> None:
        events.append(Event({"type": kind, "sequence_number": len(events), **data}, kind))

    def add_item(item: dict[str, Any], opened: dict[str, Any], steps: list[tuple[str, dict[str, Any]]]) -> None:
        where = {"output_index": len(output)}
        add("response.output_item.added", **where, item={**item, **opened, "status": "in_progress"})
        for position, (kind, fields) in enumerate(steps):
            id_ = f"{item['id']}{position}" if changes_ids else item["id"]
            add(kind, **where, item_id=id_, **fields)
        if closes:
            add("response.output_item.done", **where, item=item)
        output.append(item)

    head = {"id": f"resp_{number}", "object": "response", "model": "m", "error": None}
    add("response.created", response={**head, "status": "in_progress", "output": []})
    add("keepalive")
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}] if encrypted else []
        content: list[dict[str, Any]] = [] if encrypted else [{"type": "reasoning_text", "text": reply.reasoning}]
        item: dict[str, Any] = {"id": f"rs_{number}", "type": "reasoning", "summary": summary, "content": content}
        item |= {"encrypted_content": _signature(number)} if encrypted else {}
        kind = "response.reasoning_summary_text.delta" if encrypted else "response.reasoning_text.delta"
        place = {"summary_index": 0} if encrypted else {"content_index": 0}
        steps: list[tuple[str, dict[str, Any]]] = [
            (kind, {**place, "delta": piece}) for piece in pieces(reply.reasoning, 6)
        ]
        add_item(item, {"summary": [], "content": []}, steps)
    if said := reply.text or reply.refusal:
        type_, name = ("output_text", "text") if reply.text else ("refusal", "refusal")
        content = [{"type": type_, name: said, "annotations": []}]
        item = {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": content}
        place = {"content_index": 0}
        steps = [(f"response.{type_}.delta", {**place, "delta": piece}) for piece in pieces(said, 6)]
        steps.append((f"response.{type_}.done", {**place, name: said}))
        add_item(item, {"content": []}, steps)
    for ordinal, call in enumerate(reply.calls):
        id_, arguments = f"fc_{number}_{ordinal}", arguments_of(call)
        item = {"id": id_, "type": "function_call", "call_id": f"call_{number}_{ordinal}", "name": call.name}
        kind = "response.function_call_arguments"
        steps = [(f"{kind}.delta", {"delta": piece}) for piece in pieces(arguments, 5)]
        add_item(
            {**item, "arguments": arguments}, {"arguments": ""}, [*steps, (f"{kind}.done", {"arguments": arguments})]
        )
    usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
    word = "incomplete" if reply.finish_reason else "completed"
    details = {"incomplete_details": {"reason": reply.finish_reason}} if reply.finish_reason else {}
    add(f"response.{word}", response={**head, "status": word, "output": output, "usage": usage, **details})
    return events


def _response(reply: Reply, number: int) -> dict[str, Any]:
    """The response that is not streamed, which ends the stream as well."""
    last = _responses(reply, number)[-1].data
    return dict(last["response"]) if isinstance(last, dict) else {}


def _copilot(reply: Reply, number: int) -> list[Event]:
    return _responses(reply, number, changes_ids=True)


def _open_weights(reply: Reply, number: int) -> list[Event]:
    return _responses(reply, number, encrypted=False)


def _unclosed(reply: Reply, number: int) -> list[Event]:
    return _responses(reply, number, closes=False)


def _responses_problem(body: Body, sent: Sequence[Reply]) -> str | None:
    known = {_signature(number) for number in range(len(sent))}
    calls, items = set[str](), body["input"]
    for item, following in zip(items, [*items[1:], {}], strict=True):
        match item.get("type"):
            case "function_call":
                if item["call_id"] in calls:
                    return f"Duplicate function call {item['call_id']}"
                calls.add(item["call_id"])
            case "function_call_output" if item["call_id"] not in calls:
                return f"No tool call found for function call output with call_id {item['call_id']}."
            case "reasoning":
                is_followed = following.get("type") in ("function_call", "reasoning") or following.get("role")
                if not is_followed or following.get("role") == "user":
                    return f"Item '{item.get('id')}' of type 'reasoning' was provided without its following item."
                if (encrypted := item.get("encrypted_content")) is not None and encrypted not in known:
                    return "The encrypted content could not be verified."
    outputs = {item["call_id"] for item in items if item.get("type") == "function_call_output"}
    return f"No tool output found for function call {calls - outputs}" if calls - outputs else None


def _openai(reply: Reply, number: int) -> list[Event]:
    return _responses(reply, number)


def _anthropic(reply: Reply, number: int) -> list[Event]:
    return _messages(reply, number)


BLOCK_WIRES: Final = (
    Wire("anthropic", "anthropic", "messages", _anthropic, _messages_problem),
    Wire("bedrock, anthropic", "anthropic", "messages", _bedrock, _messages_problem),
    Wire("anthropic, no names of events", "anthropic", "messages", _nameless, _messages_problem),
    Wire("responses", "openai", "responses", _openai, _responses_problem, _response),
    Wire("responses, another id in each event", "openai", "responses", _copilot, _responses_problem),
    Wire("responses, open weights", "openai_compatible", "responses", _open_weights, _responses_problem),
    Wire("responses, no ends of items", "openai", "responses", _unclosed, _responses_problem),
)
"""Servers of blocks and items."""
