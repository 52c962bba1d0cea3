"""POST /v1/responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import structlog
from mnemesh_kit.errors import NotFound
from mnemesh_kit.principal import current_principal
from starlette.requests import Request
from starlette.responses import Response

from mnemesh_gateway.errors import InvalidRequest
from mnemesh_gateway.http.body import Bodies
from mnemesh_gateway.http.chat import client_of, headers_of
from mnemesh_gateway.http.convert.fields import json_object
from mnemesh_gateway.http.convert.response_events import ResponseWriter
from mnemesh_gateway.http.convert.responses import (
    continued_conversation_id,
    continued_run_id,
    response_request_from_json,
)
from mnemesh_gateway.http.errors import error_to_json, typed
from mnemesh_gateway.http.streams import encode, event_stream, sse
from mnemesh_gateway.model.chat import ChatRequest
from mnemesh_gateway.usecases.chat import Answer, ChatService

_log = structlog.get_logger("mnemesh.http")


class ResponsesEndpoint:
    """Decodes requests of the Responses API, and encodes answers as one object or as a stream."""

    def __init__(self, service: ChatService, bodies: Bodies, *, strict: bool) -> None:
        self._service = service
        self._bodies = bodies
        self._strict = strict

    async def create(self, request: Request) -> Response:
        """Answers a request."""
        async with self._bodies.reading(request, self._converted) as (body, chat):
            run_id, conversation_id = continued_run_id(body), continued_conversation_id(body)
            client = replace(client_of(request), previous_run_id=run_id, conversation_id=conversation_id)
            try:
                answer = await self._service.open(current_principal(), client, chat)
            except NotFound as error:
                if error.field == "model" or (run_id is None and conversation_id is None):
                    raise
                name = "previous_response_id" if run_id is not None else "conversation"
                raise InvalidRequest(f"{name} is not known: {error.message}", name, f"{name}_not_found") from error
            writer = ResponseWriter(answer, chat, body)
        headers = headers_of(answer, chat)
        if chat.stream:
            return event_stream(_events(answer, writer), headers)
        async with aclosing(answer.events) as events:
            async for event in events:
                for _ in writer.take(event):
                    pass
        if not await request.is_disconnected():
            answer.mark_delivered()
        return Response(encode(writer.response()), media_type="application/json", headers=headers)

    def _converted(self, raw: bytes) -> tuple[dict[str, Any], ChatRequest]:
        body = json_object(raw)
        return body, response_request_from_json(body, strict=self._strict)


async def _events(answer: Answer, writer: ResponseWriter) -> AsyncGenerator[bytes, None]:
    for event in writer.begin():
        yield sse(event, event["type"])
    async with aclosing(answer.events) as events:
        try:
            async for step in events:
                for event in writer.take(step):
                    yield sse(event, event["type"])
        except Exception as error:
            failure = typed(error)
            if failure is not error:
                _log.exception("stream_failed")
            described = error_to_json(failure)["error"]
            event = writer.fail(described["code"], described["message"])
            yield sse(event, event["type"])
            return
    event = writer.end()
    yield sse(event, event["type"])
    answer.mark_delivered()
