"""POST /v1/chat/completions."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import structlog
from mnemesh_kit.call_context import current_principal
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
from mnemesh_gateway.http.errors import error_to_json, typed
from mnemesh_gateway.http.streams import DONE, encode, event_stream, sse
from mnemesh_gateway.model.chat import Caller, ChatRequest
from mnemesh_gateway.model.runs import Begun, Called, Finish, Finished, Idle, Reasoned, Said, ToolCall, Usage
from mnemesh_gateway.model.sessions import FRONT_END_HEADERS, SESSION_HEADER
from mnemesh_gateway.model.tasks import Task
from mnemesh_gateway.usecases.chat import Answer, ChatService
from mnemesh_gateway.usecases.tasks import TaskService

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

        async with self._bodies.reading(request, converted) as (chat, task):
            self._tasks.sweep(current_principal())
            if task is not None:
                answer = await self._tasks.open(current_principal(), chat.model, task)
            else:
                answer = await self._service.open(current_principal(), client, chat)
        headers = headers_of(answer, chat)
        if chat.stream:
            return event_stream(_chunks(answer, chat), headers)
        content = await _collected(answer, chat)
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
    headers = {} if answer.begun is None else {"X-Mnemesh-Run-Id": answer.begun.run_id}
    if chat.ignored:
        names = ", ".join(name[:100] for name in chat.ignored[:20])
        headers["X-Mnemesh-Ignored-Parameters"] = _NOT_VISIBLE.sub("?", names)
    return headers


async def _collected(answer: Answer, chat: ChatRequest) -> dict[str, Any]:
    text: list[str] = []
    reasoning: list[str] = []
    calls: tuple[ToolCall, ...] = ()
    finish, usage = Finish.STOP, Usage()
    async with aclosing(answer.events) as events:
        async for event in events:
            match event:
                case Said(piece):
                    text.append(piece)
                case Reasoned(piece):
                    reasoning.append(piece)
                case Called():
                    calls = event.calls
                case Finished():
                    finish, usage = event.reason, event.usage
    content = "".join(text) if text or not calls else None
    return completion_to_json(answer, chat.model, content, "".join(reasoning), calls, finish, usage)


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
    async with aclosing(answer.events) as events:
        try:
            async for event in events:
                match event:
                    case Said(text):
                        yield chunk({"content": text})
                    case Reasoned(text):
                        yield chunk({"reasoning_content": text})
                    case Called(calls):
                        yield chunk(calls_delta(calls))
                    case Finished(reason, used):
                        usage = used
                        yield chunk({}, reason)
                    case Begun() | Idle():
                        pass
        except Exception as error:
            failure = typed(error)
            if failure is not error:
                _log.exception("stream_failed")
            yield sse(error_to_json(failure))
            return
    if answer.begun is not None and chat.include_usage:
        yield sse({**head, "choices": [], "usage": usage_to_json(usage)})
    yield DONE
    answer.mark_delivered()
