"""Fake servers of OpenAI's chat completions and responses."""

import argparse
import asyncio
import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import uvloop
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mnemesh_testkit.fakes.server import AUTOMATIC, Call, FakeProvider, Fault, Reply, Script, Usage, pieces

_SAID: Final = "Here is what I found: everything is in its place, and nothing was lost on the way."
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length:\s*(\d+)")
_TOOL_MESSAGE: Final = re.compile(rb'"role":\s?"tool"')
_LINE: Final = "The lean fake was here."
_SCRIPTS: Final = {"one-step": 0, "five-tools": 5}
# The last takes back what the first did, so that turn follows turn on the same block.
_TOOLS: Final = (
    (b'"memory_insert"', "memory_insert", {"label": "human", "new_str": _LINE}),
    (b'"archival_memory_insert"', "archival_memory_insert", {"content": _LINE}),
    (b'"archival_memory_search"', "archival_memory_search", {"query": "lean fake"}),
    (b'"conversation_search"', "conversation_search", {"query": "what was said"}),
    (b'"memory_replace"', "memory_replace", {"label": "human", "old_str": f"\n{_LINE}", "new_str": ""}),
)
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"content-length: %d\r\n\r\n%b"
)


class LeanProtocol(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, one request after the other, for exactly two kinds of request."""

    def __init__(self, steps: int, counter: "itertools.count[int]", seconds: float = 0.0) -> None:
        self._steps = steps
        self._seconds = seconds
        self._counter = counter
        self._pieces: list[bytes] = []
        self._missing = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        """Collects a request by its length, then answers it."""
        if self._missing < 0:
            data = b"".join((*self._pieces, data))
            self._pieces.clear()
            end = data.find(b"\r\n\r\n")
            length = _LENGTH.search(data, 0, max(end, 0) + 2)
            if end < 0:
                self._pieces.append(data)
                return
            self._missing = end + 4 + (int(length[1]) if length else 0)
        self._pieces.append(data)
        self._missing -= len(data)
        if self._missing <= 0:
            request = b"".join(self._pieces)
            self._pieces.clear()
            self._missing = -1
            answer = self._answer(request)
            if self._seconds:
                asyncio.get_running_loop().call_later(self._seconds, self._write, answer)
            else:
                self._transport.write(answer)

    def _write(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)

    def _answer(self, request: bytes) -> bytes:
        if request.startswith(b"GET"):
            models = {"object": "list", "data": [{"id": "lean", "object": "model", "created": 0, "owned_by": "fake"}]}
            return _HEAD.replace(b"text/event-stream", b"application/json") % _sized(json.dumps(models).encode())
        done = len(_TOOL_MESSAGE.findall(request, max(0, request.rfind(b"user_message"))))
        tool = self._tool(request, done) if done < self._steps_of(request) else None
        extra: dict[str, Any] = {}
        if b'"thinking"' in request:
            extra["thinking"] = "As the script says."
        if tool is not None:
            heartbeat = {"request_heartbeat": True} if b'"request_heartbeat"' in request else {}
            return _HEAD % _sized(_call(next(self._counter), tool[1], {**extra, **tool[2], **heartbeat}))
        if b'"name":"send_message"' in request or b'"name": "send_message"' in request:
            return _HEAD % _sized(_call(next(self._counter), "send_message", {**extra, "message": _SAID}))
        return _HEAD % _sized(_text(next(self._counter)))

    def _steps_of(self, request: bytes) -> int:
        head = request[: request.find(b'"messages"')]
        return next((steps for name, steps in _SCRIPTS.items() if f'"{name}"'.encode() in head), self._steps)

    @staticmethod
    def _tool(request: bytes, done: int) -> tuple[bytes, str, dict[str, str]] | None:
        offered = [tool for tool in _TOOLS if b'"name":' + tool[0] in request or b'"name": ' + tool[0] in request]
        return offered[done % len(offered)] if offered else None


def _sized(body: bytes) -> tuple[int, bytes]:
    return len(body), body


def _chunk(number: int, choices: str, usage: str = "null") -> str:
    return (
        f'data: {{"id":"chatcmpl-{number}","object":"chat.completion.chunk","created":0,"model":"lean",'
        f'"choices":[{choices}],"usage":{usage}}}\n\n'
    )


def _choice(delta: dict[str, Any], finish: str | None = None) -> str:
    return json.dumps({"index": 0, "delta": delta, "finish_reason": finish})


def _ended(number: int, events: Sequence[str], finish: str) -> bytes:
    usage = '{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020}'
    last = (_chunk(number, _choice({}, finish)), _chunk(number, "", usage), "data: [DONE]\n\n")
    return "".join((*events, *last)).encode()


def _text(number: int) -> bytes:
    opening = {"role": "assistant", "content": ""}
    events = [_chunk(number, _choice(delta)) for delta in (opening, {"content": _SAID[:40]}, {"content": _SAID[40:]})]
    return _ended(number, events, "stop")


def _call(number: int, name: str, arguments: dict[str, Any]) -> bytes:
    text = json.dumps(arguments)
    first = {"index": 0, "id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": ""}}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None, "tool_calls": [first]}]
    for part in (text[: len(text) // 2], text[len(text) // 2 :]):
        deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
    return _ended(number, [_chunk(number, _choice(delta)) for delta in deltas], "tool_calls")


async def serve(port: int, steps: int, seconds: float = 0.0) -> None:
    """Serves until cancelled, each answer after some time; says on stdout where, as one line of JSON."""
    counter = itertools.count(1)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: LeanProtocol(steps, counter, seconds), "127.0.0.1", port)
    bound = server.sockets[0].getsockname()[1]
    sys.stdout.write(json.dumps({"base_url": f"http://127.0.0.1:{bound}/v1"}) + "\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


def main() -> None:
    """Reads the arguments and serves."""
    parser = argparse.ArgumentParser(prog="python -m mnemesh_testkit.fakes.openai", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--script", choices=tuple(_SCRIPTS), default="one-step")
    parser.add_argument("--seconds", type=float, default=0.0, help="the time of an answer (%(default)s)")
    given = parser.parse_args()
    try:
        uvloop.run(serve(given.port, _SCRIPTS[given.script], given.seconds))
    except KeyboardInterrupt:
        sys.exit(0)


_CREATED: Final = 1_767_225_600
_DONE: Final = b"data: [DONE]\n\n"


class FakeOpenAI(FakeProvider):
    """Speaks the chat completions API at `base_url`.

    Args:
        script: what it answers.
        call_id: one id that every tool call is given, as some servers do; None counts them up.
        models: what /models lists: names, or whole rows.
        pages: what servers of this kind answer elsewhere: path → JSON, or a function of the request's body.
        routes: further ones.
    """

    _path = "/v1/chat/completions"

    def __init__(
        self,
        script: Script = (),
        *,
        call_id: str | None = None,
        models: Sequence[str | dict[str, Any]] = ("fake-model",),
        pages: Mapping[str, Any] | None = None,
        routes: Sequence[Route] = (),
    ) -> None:
        super().__init__(script)
        self._call_id = call_id
        self._models = models
        self._pages = dict(pages or {})
        self._routes = routes
        self.asked: list[str] = []
        """Paths that were asked beside those of completions, in order."""
        self.lists_models = True
        """False: /models answers 503, as a server does that still loads them."""
        self._calls_made = 0
        self._answers_made = 0

    @property
    def base_url(self) -> str:
        """The base URL for clients."""
        return f"{self.origin}/v1"

    def _more_routes(self) -> Sequence[Route]:
        pages = (Route(path, self._page, methods=["GET", "POST"]) for path in self._pages)
        return (Route("/v1/models", self._list_models), *pages, *self._routes)

    async def _list_models(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        if not self.lists_models:
            return JSONResponse({"error": {"message": "Loading."}}, status_code=503)
        common = {"object": "model", "created": _CREATED, "owned_by": "fake"}
        rows = [{**common, **(row if isinstance(row, dict) else {"id": row})} for row in self._models]
        return JSONResponse({"object": "list", "data": rows})

    async def _page(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        page = self._pages[request.url.path]
        return JSONResponse(page(json.loads(await request.body())) if callable(page) else page)

    def _events(self, reply: Reply, body: dict[str, Any]) -> Iterator[tuple[bytes, int | None]]:
        head = self._head(body, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return _event({**head, "choices": [choice]})

        opening: dict[str, Any] = {"role": "assistant", "content": None if reply.calls else ""}
        yield chunk({**opening, "refusal": None}), None
        for piece in pieces(reply.reasoning or "", reply.piece_size):
            yield chunk({"reasoning_content": piece}), None
        if reply.fields:
            yield chunk(dict(reply.fields)), None
        for ordinal, piece in enumerate(pieces(reply.text or "", reply.piece_size)):
            yield chunk({"content": piece}), ordinal
        for piece in pieces(reply.refusal or "", reply.piece_size):
            yield chunk({"refusal": piece}), None
        for index, call in enumerate(reply.calls):
            first = {**self._call(call), "index": index}
            arguments = first["function"]["arguments"]
            first["function"] = {"name": call.name, "arguments": ""}
            yield chunk({"tool_calls": [first]}), None
            for piece in pieces(arguments, reply.piece_size):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}), None
        yield chunk({}, _finish(reply)), None
        if reply.usage is not None and (body.get("stream_options") or {}).get("include_usage"):
            yield _event({**head, "choices": [], "usage": _usage(reply.usage)}), None
        yield _DONE, None

    def _whole(self, reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": reply.refusal}
        if reply.reasoning is not None:
            message["reasoning_content"] = reply.reasoning
        message |= reply.fields
        if reply.calls:
            message["tool_calls"] = [self._call(call) for call in reply.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}
        usage = None if reply.usage is None else _usage(reply.usage)
        return {**self._head(body, "chat.completion"), "choices": [choice], "usage": usage}

    def _error(self, fault: Fault) -> tuple[int, dict[str, Any]]:
        return _error(
            fault,
            f"This model's maximum context length is {fault.message} tokens. However, your messages resulted in "
            f"{fault.after} tokens. Please reduce the length of the messages.",
        )

    def _error_event(self, fault: Fault) -> bytes:
        return _event({"error": {"message": fault.message, "type": "server_error", "param": None, "code": fault.code}})

    def _empty(self, body: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        usage = _usage(Usage(output=0))
        streamed = _event({**self._head(body, "chat.completion.chunk"), "choices": [], "usage": usage}) + _DONE
        return streamed, {**self._head(body, "chat.completion"), "choices": [], "usage": usage}

    def _head(self, body: dict[str, Any], kind: str) -> dict[str, Any]:
        self._answers_made += 1
        answer_id = f"chatcmpl-{self._answers_made:024d}"
        return {"id": answer_id, "object": kind, "created": _CREATED, "model": body.get("model", "fake-model")}

    def _call(self, call: Call) -> dict[str, Any]:
        self._calls_made += 1
        automatic = self._call_id or f"call_{self._calls_made:024d}"
        call_id = automatic if call.id == AUTOMATIC else call.id
        arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
        shown = {"type": "function", "function": {"name": call.name, "arguments": arguments}, **call.fields}
        return shown if call_id is None else {"id": call_id, **shown}


def _finish(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.calls else "stop")


def _usage(usage: Usage) -> dict[str, Any]:
    shown: dict[str, Any] = {"prompt_tokens": usage.input, "completion_tokens": usage.output}
    if usage.input is not None and usage.output is not None:
        shown["total_tokens"] = usage.input + usage.output
    if usage.cached is not None:
        shown["prompt_tokens_details"] = {"cached_tokens": usage.cached, "audio_tokens": 0}
    if usage.reasoning is not None:
        shown["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning, "audio_tokens": 0}
    return {key: value for key, value in shown.items() if value is not None}


def _error(fault: Fault, context_overflow: str) -> tuple[int, dict[str, Any]]:
    kind, status, code, message = "invalid_request_error", fault.status, fault.code, fault.message
    if fault.kind == "overloaded":
        kind, status, message = "server_error", 503, "The engine is currently overloaded, please try again later"
    elif fault.kind == "context_overflow":
        code, message = "context_length_exceeded", context_overflow
    elif status == 429:
        kind, code = "requests", code or "rate_limit_exceeded"
    elif status >= 500:
        kind = "server_error"
    return status, {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


if __name__ == "__main__":
    main()


_RESPONSE_CREATED = 1_767_225_600
_OUT_OF_TOKENS = frozenset({"length", "max_output_tokens"})


class FakeResponses(FakeProvider):
    """Speaks the Responses API at `base_url`.

    The reasoning of a reply is sent as a summary with an encrypted original, its `signature`. A reply's
    `finish_reason` "length" or "content_filter" leaves the response incomplete.

    Args:
        script: what it answers.
    """

    _path = "/v1/responses"

    def __init__(self, script: Script = ()) -> None:
        super().__init__(script)
        self._made = 0

    @property
    def base_url(self) -> str:
        """The base URL for clients."""
        return f"{self.origin}/v1"

    def _events(self, reply: Reply, body: dict[str, Any]) -> Iterator[tuple[bytes, int | None]]:
        sequence = 0

        def event(kind: str, **fields: Any) -> bytes:
            nonlocal sequence
            sequence += 1
            return _response_event(kind, sequence_number=sequence - 1, **fields)

        head = self._head(body)
        opened = {**head, "status": "in_progress", "output": [], "usage": None}
        yield event("response.created", response=opened), None
        yield event("response.in_progress", response=opened), None
        items = self._items(reply)
        for index, item in enumerate(items):
            started = {**item, **_emptied(item), "status": "in_progress"}
            yield event("response.output_item.added", output_index=index, item=started), None
            for kind, ordinal, fields in _steps(item, reply.piece_size):
                yield event(kind, output_index=index, item_id=item["id"], **fields), ordinal
            yield event("response.output_item.done", output_index=index, item=item), None
        whole = self._finished(head, items, reply)
        ending = "response.incomplete" if whole["status"] == "incomplete" else "response.completed"
        yield event(ending, response=whole), None

    def _whole(self, reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
        return self._finished(self._head(body), self._items(reply), reply)

    def _error(self, fault: Fault) -> tuple[int, dict[str, Any]]:
        return _error(
            fault, "Your input exceeds the context window of this model. Please adjust your input and try again."
        )

    def _error_event(self, fault: Fault) -> bytes:
        """As the API ends a response that failed on its way; a message "error" makes it the bare error event."""
        if fault.code is not None and fault.code.startswith("event:"):
            code = fault.code.removeprefix("event:")
            return _response_event("error", code=code, message=fault.message, param=None, sequence_number=99)
        failed = {**self._head({}), "status": "failed", "output": [], "usage": None}
        failed["error"] = {"code": fault.code, "message": fault.message}
        return _response_event("response.failed", response=failed, sequence_number=99)

    def _empty(self, body: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        whole = self._finished(self._head(body), [], Reply(usage=Usage(output=0)))
        return _response_event("response.completed", response=whole, sequence_number=0), whole

    def _head(self, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": f"resp_{self._number():032d}",
            "object": "response",
            "created_at": _RESPONSE_CREATED,
            "model": body.get("model", "fake-model"),
            "error": None,
            "incomplete_details": None,
        }

    def _items(self, reply: Reply) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        if reply.reasoning is not None or reply.signature is not None:
            summary = [{"type": "summary_text", "text": text} for text in (reply.reasoning or "").split("\n\n") if text]
            encrypted = {"encrypted_content": reply.signature} if reply.signature is not None else {}
            items.append({"id": f"rs_{self._number()}", "type": "reasoning", "summary": summary, **encrypted})
        said = {"type": "output_text", "text": reply.text, "annotations": []} if reply.text is not None else None
        if reply.refusal is not None:
            said = {"type": "refusal", "refusal": reply.refusal}
        if said is not None:
            message = {"id": f"msg_{self._number()}", "type": "message", "role": "assistant", "status": "completed"}
            items.append({**message, "content": [said]})
        return items + [self._call(call) for call in reply.calls]

    def _call(self, call: Call) -> dict[str, Any]:
        number = self._number()
        automatic = f"call_{number:024d}"
        call_id = automatic if call.id == AUTOMATIC else call.id
        arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
        item = {"id": f"fc_{number}", "type": "function_call", "status": "completed", "name": call.name}
        return {**item, "arguments": arguments, **({} if call_id is None else {"call_id": call_id})}

    def _finished(self, head: dict[str, Any], items: list[dict[str, Any]], reply: Reply) -> dict[str, Any]:
        reason = "max_output_tokens" if reply.finish_reason in _OUT_OF_TOKENS else reply.finish_reason
        is_whole = reason not in ("max_output_tokens", "content_filter")
        return {
            **head,
            "status": "completed" if is_whole else "incomplete",
            "incomplete_details": None if is_whole else {"reason": reason},
            "output": items,
            "usage": None if reply.usage is None else _response_usage(reply.usage),
        }

    def _number(self) -> int:
        self._made += 1
        return self._made


def _emptied(item: dict[str, Any]) -> dict[str, Any]:
    """Returns an item without the fields that only a complete item has."""
    match item["type"]:
        case "message":
            return {"content": []}
        case "function_call":
            return {"arguments": ""}
        case _:
            return {"summary": [], "encrypted_content": ""}


def _steps(item: dict[str, Any], size: int) -> Iterator[tuple[str, int | None, dict[str, Any]]]:
    """The events between the opening of an item and its end: kind, ordinal of a piece of text, fields."""
    match item:
        case {"type": "message", "content": [part]}:
            field, kind = ("text", "output_text") if part["type"] == "output_text" else ("refusal", "refusal")
            where = {"content_index": 0}
            yield "response.content_part.added", None, {**where, "part": {**part, field: ""}}
            for ordinal, piece in enumerate(pieces(part[field], size)):
                more: dict[str, Any] = {"logprobs": []} if field == "text" else {}
                yield f"response.{kind}.delta", ordinal if more else None, {**where, "delta": piece, **more}
            yield f"response.{kind}.done", None, {**where, field: part[field]}
            yield "response.content_part.done", None, {**where, "part": part}
        case {"type": "function_call", "arguments": arguments}:
            for piece in pieces(arguments, size):
                yield "response.function_call_arguments.delta", None, {"delta": piece}
            yield "response.function_call_arguments.done", None, {"arguments": arguments}
        case {"type": "reasoning", "summary": summary}:
            for number, part in enumerate(summary):
                where = {"summary_index": number}
                yield "response.reasoning_summary_part.added", None, {**where, "part": {**part, "text": ""}}
                for piece in pieces(part["text"], size):
                    yield "response.reasoning_summary_text.delta", None, {**where, "delta": piece}
                yield "response.reasoning_summary_text.done", None, {**where, "text": part["text"]}
                yield "response.reasoning_summary_part.done", None, {**where, "part": part}


def _response_usage(usage: Usage) -> dict[str, Any]:
    shown: dict[str, Any] = {"input_tokens": usage.input, "output_tokens": usage.output}
    if usage.input is not None and usage.output is not None:
        shown["total_tokens"] = usage.input + usage.output
    if usage.cached is not None:
        shown["input_tokens_details"] = {"cached_tokens": usage.cached}
    if usage.reasoning is not None:
        shown["output_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return {key: value for key, value in shown.items() if value is not None}


def _response_event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()
