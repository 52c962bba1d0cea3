"""Servers of chat completions: what they stream, and what they refuse."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_testkit.fakes.server import Call, Reply, pieces

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


Delta = dict[str, Any]
_USAGE: Final = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
DONE: Final = Event("data: [DONE]\n")


def _call(call: Call, number: int, ordinal: int, **fields: Any) -> Delta:
    function = {"name": call.name, "arguments": arguments_of(call)}
    return {"index": ordinal, "id": f"call_{number}_{ordinal}", "type": "function", "function": function, **fields}


def in_pieces(
    call: Call, number: int, ordinal: int, *, first: Delta | None = None, later: Delta | None = None, **fields: Any
) -> Iterator[list[Delta]]:
    """A call whose arguments follow its name in pieces. `first` and `later` are what a server adds to the functions."""
    opened = _call(call, number, ordinal, **fields)
    opened["function"] = {"name": call.name, **({"arguments": ""} if first is None else first)}
    yield [opened]
    for piece in pieces(arguments_of(call), 5):
        yield [{"index": opened["index"], "function": {**(later or {}), "arguments": piece}}]


def _whole(call: Call, number: int, ordinal: int) -> Iterator[list[Delta]]:
    yield [_call(call, number, ordinal)]


def _vllm(call: Call, number: int, ordinal: int) -> Iterator[list[Delta]]:
    yield from in_pieces(call, number, ordinal, first={}, id=f"chatcmpl-tool-{number}{ordinal}")


def _vllm_ids(call: Call, number: int, ordinal: int) -> Iterator[list[Delta]]:
    """Releases that give each piece an id of its own."""
    for position, (piece,) in enumerate(in_pieces(call, number, ordinal, first={})):
        yield [{**piece, "id": f"chatcmpl-tool-{number}{ordinal}{position}", "type": "function"}]


def _llama_cpp(call: Call, number: int, ordinal: int) -> Iterator[list[Delta]]:
    text = arguments_of(call)
    first = _call(call, number, ordinal, id=f"{number}{ordinal}".ljust(32, "x"))
    first["function"]["arguments"] = text[:1]
    yield [first]
    for piece in pieces(text[1:], 4):
        yield [{"index": ordinal, "function": {"arguments": piece}}]


def _repeated(call: Call, number: int, ordinal: int) -> Iterator[list[Delta]]:
    """A server that repeats id and name in each piece, with an empty one at the end."""
    for (piece,) in in_pieces(call, number, ordinal):
        yield [_call(call, number, ordinal) | {"function": {"name": call.name, **piece["function"]}}]
    yield [{"index": ordinal, "function": {"name": call.name, "arguments": ""}}]


def _sglang(call: Call, number: int, ordinal: int) -> Iterator[list[Delta]]:
    for position, (piece,) in enumerate(in_pieces(call, number, ordinal, later={"name": None})):
        yield [piece if not position else {"id": None, "type": "function", **piece}]


def _ollama(call: Call, number: int, ordinal: int) -> Iterator[list[Delta]]:
    yield [_call(call, number, ordinal, index=0, id=f"call_{number}{ordinal}abcdef")]


def _lmdeploy(call: Call, number: int, ordinal: int) -> Iterator[list[Delta]]:
    for position, (piece,) in enumerate(in_pieces(call, number, ordinal, later={"name": None}, index=0)):
        yield [piece if not position else {"id": "", "type": "function", **piece}]


def _qwen(call: Call, number: int, ordinal: int) -> Iterator[list[Delta]]:
    for position, (piece,) in enumerate(in_pieces(call, number, ordinal)):
        yield [piece if not position else {"id": "", "type": "function", **piece}]


def _kimi(call: Call, number: int, ordinal: int) -> Iterator[list[Delta]]:
    yield from in_pieces(call, number, ordinal, id=f"functions.{call.name}:{ordinal}")


def _mistral(call: Call, number: int, ordinal: int) -> Iterator[list[Delta]]:
    yield [_call(call, number, ordinal, id=f"D68{number}P{ordinal}".ljust(9, "x"))]


def _gemini(call: Call, number: int, ordinal: int) -> Iterator[list[Delta]]:
    made = _call(call, number, ordinal, id=f"function-call-{number}{ordinal}")
    del made["index"]
    if ordinal == 0:
        made["extra_content"] = {"google": {"thought_signature": f"c2ln{number}"}}
    yield [made]


def _proxy(call: Call, number: int, ordinal: int) -> Iterator[list[Delta]]:
    """A proxy of another API, which opens a call with the empty input of a block."""
    yield from in_pieces(call, number, ordinal, first={"arguments": "{}"})


def _reasoning(name: str) -> Callable[[str, int], list[Delta]]:
    return lambda text, number: [{name: piece} for piece in pieces(text, 6)]


_CONTENT: Final = _reasoning("reasoning_content")


def _openrouter_reasoning(text: str, number: int) -> list[Delta]:
    detail = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    shown = [{"reasoning": piece, "reasoning_details": [{**detail, "text": piece}]} for piece in pieces(text, 6)]
    return [*shown, {"reasoning_details": [{**detail, "signature": f"sig{number}"}]}]


def _tags(text: str, number: int) -> list[Delta]:
    return [{"content": piece} for piece in pieces(f"<think>\n{text}\n</think>\n\n", 5)]


def _typed(text: str, number: int) -> list[Delta]:
    return [
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": piece}]}]} for piece in pieces(text, 6)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a server streams a reply: its deltas, and the chunks around them."""

    calls: Callable[[Call, int, int], Iterator[list[Delta]]] = in_pieces
    reasoning: Callable[[str, int], list[Delta]] = _CONTENT
    opening: Delta | None = None
    each: Delta | None = None
    """What each delta has."""
    head: Delta | None = None
    """What each chunk has."""
    finish: str = "tool_calls"
    """The finish reason of calls."""
    last: Delta | None = None
    """What the last chunk has beside the finish reason."""
    usage: str = "own"
    """Usage: in a chunk of its "own", in the "last" one, with an "empty" delta, in the "choice", or "none"."""
    keepalive: str = ""
    finishes: bool = True
    done: bool = True

    def events(self, reply: Reply, number: int) -> list[Event]:
        """Returns the stream of a reply."""
        head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        head |= self.head or {}
        events = [Event(self.keepalive)] if self.keepalive else []

        def add(delta: Delta, finish: str | None = None, **more: Any) -> None:
            choice = {"index": 0, "delta": {**(self.each or {}), **delta}, "finish_reason": finish}
            events.append(Event({**head, "choices": [choice], **more}))
            if self.keepalive:
                events.append(Event(self.keepalive))

        for delta in self._deltas(reply, number):
            add(delta)
        finish = reply.finish_reason or ((self.finish if reply.calls else "stop") if self.finishes else None)
        if finish is not None:
            add({}, finish, **({"usage": _USAGE} if self.usage == "last" else {}), **(self.last or {}))
        if self.usage == "own":
            events.append(Event({**head, "choices": [], "usage": _USAGE}))
        elif self.usage == "choice" and isinstance(data := events[-1].data, dict):
            data["choices"][0]["usage"] = _USAGE
        elif self.usage == "empty":
            add({"role": "assistant", "content": ""}, None, usage=_USAGE)
        return events + ([DONE] if self.done else [])

    def body(self, reply: Reply, number: int) -> dict[str, Any]:
        """Returns the answer that is not streamed."""
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        for delta in self.reasoning(reply.reasoning, number) if reply.reasoning else ():
            for name, value in delta.items():
                message[name] = (message.get(name) or type(value)()) + value
        text = reply.text or ""
        message["content"] += text if isinstance(message["content"], str) else [{"type": "text", "text": text}]
        for ordinal, call in enumerate(reply.calls):
            first = next(self.calls(call, number, ordinal))[0]
            first["function"] = {"name": call.name, "arguments": arguments_of(call)}
            message.setdefault("tool_calls", []).append(first)
        choice = {"index": 0, "message": message, "finish_reason": self.finish if reply.calls else "stop"}
        return {"id": f"chatcmpl-{number}", "object": "chat.completion", "choices": [choice], "usage": _USAGE}

    def _deltas(self, reply: Reply, number: int) -> Iterator[Delta]:
        yield {"role": "assistant", "content": ""} if self.opening is None else self.opening
        if reply.reasoning:
            yield from self.reasoning(reply.reasoning, number)
        yield from ({"content": piece} for piece in pieces(reply.text or "", 6))
        yield from ({"refusal": piece} for piece in pieces(reply.refusal or "", 6))
        for ordinal, call in enumerate(reply.calls):
            yield from ({"tool_calls": given} for given in self.calls(call, number, ordinal))


# What servers refuse. Each rule gets the messages and the replies so far, and returns the server's words.
Rule = Callable[[list[dict[str, Any]], Sequence[Reply]], str | None]


def _pairs(messages: list[dict[str, Any]], sent: Sequence[Reply]) -> str | None:
    """Each call has its return directly behind it."""
    open_ids: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                return f"Invalid parameter: unknown tool_call_id {message['tool_call_id']}"
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            return f"An assistant message with 'tool_calls' must be followed by tool messages: {open_ids}"
        open_ids = [call["id"] for call in message.get("tool_calls") or ()]
        if len(set(open_ids)) < len(open_ids):
            return "Duplicate tool_call_id"
        for call in message.get("tool_calls") or ():
            try:
                json.loads(call["function"]["arguments"])
            except ValueError:
                return "Function arguments are not valid JSON"
        if message["role"] == "assistant" and not (message.get("content") or open_ids):
            return "Assistant message must have either content or tool_calls"
    return None


def _alternating(messages: list[dict[str, Any]], sent: Sequence[Reply]) -> str | None:
    """Templates of Gemma, Mistral and others; returns of tools count as neither."""
    roles = [message["role"] for message in messages if message["role"] in ("user", "assistant")]
    spoken = [
        message["role"]
        for message in messages
        if message["role"] == "user" or (message["role"] == "assistant" and not message.get("tool_calls"))
    ]
    repeated = any(one == two == "user" for one, two in itertools.pairwise(spoken))
    if repeated or (roles and roles[0] != "user"):
        return "Conversation roles must alternate user/assistant/user/assistant/..."
    return None


def _with_reasoning(name: str, words: str) -> Rule:
    """Messages with calls must have the reasoning that the server sent with them."""

    def rule(messages: list[dict[str, Any]], sent: Sequence[Reply]) -> str | None:
        known = [reply.reasoning for reply in sent if reply.calls and reply.reasoning]
        for index, message in enumerate(messages):
            if message.get("tool_calls") and message.get(name) not in known:
                return words.format(index=index)
        return None

    return rule


def _with_details(messages: list[dict[str, Any]], sent: Sequence[Reply]) -> str | None:
    known = {reply.reasoning: f"sig{number}" for number, reply in enumerate(sent)}
    for message in messages:
        if message.get("tool_calls"):
            texts = {detail.get("text"): detail.get("signature") for detail in message.get("reasoning_details") or ()}
            if not texts or any(known.get(text) != signature for text, signature in texts.items()):
                return "Provider returned error: thinking blocks cannot be modified"
    return None


def _signed(messages: list[dict[str, Any]], sent: Sequence[Reply]) -> str | None:
    known = {f"c2ln{number}" for number in range(len(sent))} | {"skip_thought_signature_validator"}
    for message in messages:
        for call in (message.get("tool_calls") or ())[:1]:
            if (call.get("extra_content") or {}).get("google", {}).get("thought_signature") not in known:
                return "Function call is missing a thought_signature in functionCall parts."
    return None


def _mistral_order(messages: list[dict[str, Any]], sent: Sequence[Reply]) -> str | None:
    for before, message in itertools.pairwise(messages):
        if before["role"] == "tool" and message["role"] == "user":
            return "Unexpected role 'user' after role 'tool'"
    for message in messages:
        for call in message.get("tool_calls") or ():
            if not (len(call["id"]) == 9 and call["id"].isalnum()):
                return f"Tool call id was {call['id']} but must be a-z, A-Z, 0-9, with a length of 9."
    return "Expected last role User or Tool" if messages[-1]["role"] == "assistant" else None


def _wire(name: str, type_: str, shape: Shape, *rules: Rule) -> Wire:
    def problem(body: Body, sent: Sequence[Reply]) -> str | None:
        found = (rule(list(body["messages"]), sent) for rule in (_pairs, *rules))
        return next((words for words in found if words is not None), None)

    return Wire(name, type_, "chat", shape.events, problem, shape.body)


_KIMI: Final = "thinking is enabled but reasoning_content is missing in assistant tool call message at index {index}"
_DEEPSEEK: Final = "The reasoning_content in the thinking mode must be passed back to the API. (message {index})"
_COMPATIBLE: Final = "openai_compatible"

CHAT_WIRES: Final = (
    _wire("openai", "openai", Shape(head={"service_tier": "default", "obfuscation": "xY"}, reasoning=lambda *_: [])),
    _wire("vllm", "vllm", Shape(calls=_vllm, last={"stop_reason": None}, finish="stop")),
    _wire("vllm, reasoning", "vllm", Shape(calls=_vllm, reasoning=_reasoning("reasoning")), _alternating),
    _wire("vllm, an id in each piece", "vllm", Shape(calls=_vllm_ids, usage="none")),
    _wire("llama.cpp", _COMPATIBLE, Shape(calls=_llama_cpp, last={"timings": {"cache_n": 1}}), _alternating),
    _wire("ollama", "ollama", Shape(calls=_ollama, reasoning=_reasoning("reasoning"), each={"role": "assistant"})),
    _wire("lm studio", "lmstudio", Shape(reasoning=_tags, head={"system_fingerprint": "m"}), _alternating),
    _wire("sglang", _COMPATIBLE, Shape(calls=_sglang, each={"reasoning_content": None})),
    _wire("lmdeploy", _COMPATIBLE, Shape(calls=_lmdeploy)),
    _wire(
        "openrouter",
        "openrouter",
        Shape(
            reasoning=_openrouter_reasoning,
            head={"provider": "Anthropic"},
            each={"role": "assistant", "content": ""},
            usage="empty",
            keepalive=": OPENROUTER PROCESSING\n",
        ),
        _with_details,
    ),
    _wire(
        "deepseek",
        "deepseek",
        Shape(
            opening={"role": "assistant", "content": None, "reasoning_content": ""},
            usage="last",
            keepalive=": keep-alive\n",
        ),
        _with_reasoning("reasoning_content", _DEEPSEEK),
    ),
    _wire("kimi", _COMPATIBLE, Shape(calls=_kimi, usage="choice"), _with_reasoning("reasoning_content", _KIMI)),
    _wire("qwen", _COMPATIBLE, Shape(calls=_qwen, each={"content": None})),
    _wire("groq", "groq", Shape(calls=_whole, reasoning=_reasoning("reasoning"), last={"x_groq": {"usage": _USAGE}})),
    _wire("mistral", "mistral", Shape(calls=_mistral, reasoning=_typed, usage="last"), _mistral_order),
    _wire("xai", "xai", Shape(calls=_whole, each={"role": "assistant"}, usage="last")),
    _wire(
        "gemini",
        "google_ai",
        Shape(calls=_gemini, reasoning=lambda *_: [], each={"role": "assistant"}, finish="stop", usage="last"),
        _signed,
    ),
    _wire("names repeated", _COMPATIBLE, Shape(calls=_repeated, keepalive="data:\n")),
    _wire("empty input first", _COMPATIBLE, Shape(calls=_proxy, keepalive="event: ping\n")),
    _wire("no finish reason", _COMPATIBLE, Shape(finishes=False, usage="none")),
    _wire("no mark of the end", _COMPATIBLE, Shape(done=False, usage="none")),
)
"""Servers of chat completions."""
