"""Servers of chat completions: what they stream, and what they refuse."""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_testkit.fakes.server import Call, Reply, pieces
from mnemesh_testkit.wires.blocks import Body, Event, Wire, arguments_of

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
