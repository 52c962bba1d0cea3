"""POST /v1/chat/completions."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import structlog
from mnemesh.types.v1.message_pb2 import ToolCall, Usage
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import typed_error
from starlette.requests import Request
from starlette.responses import Response

from mnemesh_gateway.errors import InvalidRequest
from mnemesh_gateway.http.body import Bodies
from mnemesh_gateway.http.convert.chat import (
    calls_delta,
    chat_request_from_json,
    completion_id,
    completion_to_json,
    task_from_json,
    usage_to_json,
)
from mnemesh_gateway.http.convert.messages import json_object
from mnemesh_gateway.http.errors import error_to_json
from mnemesh_gateway.http.streams import DONE, encode, event_stream, sse
from mnemesh_gateway.usecases.answering import Part
from mnemesh_gateway.usecases.chat import Answer, Caller, ChatRequest, ChatService
from mnemesh_gateway.usecases.sessions import FRONT_END_HEADERS, SESSION_HEADER
from mnemesh_gateway.usecases.tasks import Task, TaskService

_NOT_VISIBLE = re.compile(r"[^\x20-\x7e]")
_log = structlog.get_logger("mnemesh.http")


class ChatEndpoint:
    """Decodes chat requests, and encodes answers as one object or as a stream."""

    def __init__(self, service: ChatService, tasks: TaskService, bodies: Bodies, *, strict: bool) -> None:
        self._service = service
        self._tasks = tasks
        self._bodies = bodies
        self._strict = strict

    async def complete(self, request: Request) -> Response:
        """Answers a request."""
        client = client_of(request)

        def converted(raw: bytes) -> tuple[ChatRequest, Task | None]:
            body = json_object(raw)
            chat = chat_request_from_json(body, strict=self._strict)
            return chat, task_from_json(body, chat, client)

        async with self._bodies.read_converted(request, converted) as (chat, task):
            self._tasks.sweep(current_principal())
            if task is not None:
                answer = await self._tasks.open(current_principal(), chat.model, task)
            else:
                answer = await self._service.open(current_principal(), client, chat)
        headers = headers_of(answer, chat)
        if chat.config.stream_tokens:
            return event_stream(_chunks(answer, chat), headers)
        content = await _collect(answer, chat)
        if not await request.is_disconnected():
            answer.mark_delivered()
        return Response(encode(content), media_type="application/json", headers=headers)


def client_of(request: Request) -> Caller:
    """Returns what the headers say about the client's session. Raises InvalidRequest."""
    key = request.headers.get("idempotency-key") or None
    if key is not None and len(key) > 200:
        raise InvalidRequest("Idempotency-Key must have at most 200 characters.", "Idempotency-Key")
    return Caller(
        headers={
            name: request.headers[name] for name in (SESSION_HEADER, *FRONT_END_HEADERS) if name in request.headers
        },
        is_retry=request.headers.get("x-stainless-retry-count", "0") != "0",
        idempotency_key=key,
        task=request.headers.get("x-mnemesh-task"),
    )


def headers_of(answer: Answer, chat: ChatRequest) -> dict[str, str]:
    """Returns the headers of an answer: the id of its run, and the parameters that had no effect."""
    headers = {} if answer.run_id is None else {"X-Mnemesh-Run-Id": answer.run_id}
    if chat.ignored:
        names = ", ".join(name[:100] for name in chat.ignored[:20])
        headers["X-Mnemesh-Ignored-Parameters"] = _NOT_VISIBLE.sub("?", names)
    return headers


async def _collect(answer: Answer, chat: ChatRequest) -> dict[str, Any]:
    text: list[str] = []
    reasoning: list[str] = []
    calls: Sequence[ToolCall] = ()
    last = Part()
    async with aclosing(answer.parts) as parts:
        async for part in parts:
            text.append(part.text)
            reasoning.append(part.reasoning)
            calls, last = part.calls or calls, part
    content = "".join(text)
    shown = content if content or not calls else None
    return completion_to_json(answer, chat.model, shown, "".join(reasoning), calls, last.finish or "stop", last.usage)


async def _chunks(answer: Answer, chat: ChatRequest) -> AsyncGenerator[bytes, None]:
    """Yields the chunks of a stream. An error after the first one is an event, because the status was sent."""
    head = {
        "id": completion_id(answer),
        "object": "chat.completion.chunk",
        "created": int(answer.created_at.timestamp()),
        "model": chat.model,
        "system_fingerprint": None,
    }
    no_usage: dict[str, Any] = {"usage": None} if chat.include_usage else {}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse({**head, "choices": [choice], **no_usage})

    yield chunk({"role": "assistant", "content": ""})
    usage = Usage()
    async with aclosing(answer.parts) as parts:
        try:
            async for part in parts:
                if part.text:
                    yield chunk({"content": part.text})
                if part.reasoning:
                    yield chunk({"reasoning_content": part.reasoning})
                if part.calls:
                    yield chunk(calls_delta(part.calls))
                if part.finish is not None:
                    usage = part.usage
                    yield chunk({}, part.finish)
        except Exception as error:
            failure = typed_error(error)
            if failure is not error:
                _log.exception("stream_failed")
            yield sse(error_to_json(failure))
            return
    if answer.run_id is not None and chat.include_usage:
        yield sse({**head, "choices": [], "usage": usage_to_json(usage)})
    yield DONE
    answer.mark_delivered()
