"""POST /v1/responses."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import structlog
from mnemesh.types.v1.message_pb2 import ToolCall, Usage
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import NotFound, typed_error
from mnemesh_kit.ids import is_id
from starlette.requests import Request
from starlette.responses import Response

from mnemesh_gateway.errors import InvalidRequest, UnsupportedParameter
from mnemesh_gateway.http.body import Bodies
from mnemesh_gateway.http.chat import client_of, headers_of
from mnemesh_gateway.http.convert.chat import (
    config_from_json,
    effort_from_json,
    format_from_json,
    settings_from_json,
)
from mnemesh_gateway.http.convert.messages import json_object, messages_from_json, of_type, one_of, optional, required
from mnemesh_gateway.http.errors import error_to_json
from mnemesh_gateway.http.parameters import ignored_responses_parameters
from mnemesh_gateway.http.streams import encode, event_stream, sse
from mnemesh_gateway.usecases.answering import Part
from mnemesh_gateway.usecases.chat import Answer, ChatRequest, ChatService

_RESPONSE = "resp_"

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
Event = dict[str, Any]

_log = structlog.get_logger("mnemesh.http")


def response_id(run_id: str) -> str:
    return _RESPONSE + run_id.removeprefix("run-")


def response_request_from_json(body: Mapping[str, Any], *, strict: bool = False) -> ChatRequest:
    """Returns the request of a body of /v1/responses. Raises InvalidRequest.

    Args:
        body: The body.
        strict: Refuses parameters that would be ignored.
    """
    ignored = ignored_responses_parameters(body, strict=strict)
    model = required(body, "model", str)
    if "input" not in body:
        raise InvalidRequest("Missing required parameter: 'input'.", "input", "missing_required_parameter")
    items = body["input"]
    messages = (
        [{"role": "user", "content": items}]
        if isinstance(items, str)
        else [_message(item, f"input[{index}]") for index, item in enumerate(of_type(items, list, "input"))]
    )
    found, delta = messages_from_json([item for item in messages if item is not None], [], "input")
    given = optional(body, "instructions", str)
    texts = [text for text in (given, found) if text is not None]
    text = optional(body, "text", dict) or {}
    verbosity = optional(text, "verbosity", str, "text")
    reasoning = optional(body, "reasoning", dict) or {}
    settings = settings_from_json(body, effort_from_json(reasoning, "effort", "reasoning"))
    form = format_from_json(optional(text, "format", dict, "text"), "text.format")
    config, tool_paths = config_from_json(body, settings, form, {"verbosity": verbosity} if verbosity else {})
    return ChatRequest(
        model=model,
        instructions="\n\n".join(texts) if texts else None,
        delta=delta,
        config=config,
        tool_paths=tool_paths,
        ignored=ignored,
        user=optional(body, "safety_identifier", str) or optional(body, "user", str),
        metadata=optional(body, "metadata", dict) or {},
    )


def _message(item: Any, path: str) -> dict[str, Any] | None:
    """Returns an item of the input as a chat message; None for reasoning, which the mesh has."""
    item = of_type(item, dict, path)
    match optional(item, "type", str, path) or "message":
        case "message":
            one_of(required(item, "role", str, path), ("user", "assistant", "system", "developer"), f"{path}.role")
            return {key: value for key, value in item.items() if key in ("role", "content", "name")}
        case "function_call":
            name = required(item, "name", str, path)
            call_id, arguments = required(item, "call_id", str, path), required(item, "arguments", str, path)
            function = {"name": name, "arguments": arguments}
            return {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]}
        case "function_call_output":
            if "output" not in item:
                raise InvalidRequest(
                    f"Missing required parameter: '{path}.output'.", f"{path}.output", "missing_required_parameter"
                )
            return {"role": "tool", "tool_call_id": required(item, "call_id", str, path), "content": item["output"]}
        case "reasoning":
            return None
        case kind:
            raise UnsupportedParameter(f"{path}.type", "Send messages, function calls and their outputs.", kind[:100])


def continued_run_id(body: Mapping[str, Any]) -> str | None:
    """Returns the run of `previous_response_id`. Raises InvalidRequest if it is not an id of a response."""
    given = optional(body, "previous_response_id", str)
    if given is None:
        return None
    run_id = f"run-{given.removeprefix(_RESPONSE)}"
    if not given.startswith(_RESPONSE) or not is_id(run_id, "run"):
        raise InvalidRequest(
            f"There is no response {given[:100]!r}.", "previous_response_id", "previous_response_not_found"
        )
    if body.get("conversation") is not None:
        raise InvalidRequest("'previous_response_id' and 'conversation' exclude each other.", "conversation")
    return run_id


def continued_conversation_id(body: Mapping[str, Any]) -> str | None:
    """Returns the id of `conversation`, which is that of the mesh. Raises InvalidRequest."""
    given = body.get("conversation")
    if isinstance(given, dict):
        given = required(given, "id", str, "conversation")
    if given is None:
        return None
    if not is_id(of_type(given, str, "conversation"), "conv"):
        raise InvalidRequest(
            "'conversation' must be the id of a conversation of the agent: conv-<uuid4>.", "conversation"
        )
    return str(given)


class ResponseWriter:
    """Builds a response from the events of an answer, and yields the events of its stream on the way."""

    def __init__(self, answer: Answer, request: ChatRequest, body: Mapping[str, Any]) -> None:
        self._answer = answer
        self._request = request
        self._body = body
        run_id = answer.run_id or "run-empty"
        self._suffix = run_id.removeprefix("run-")
        self._id = response_id(run_id)
        self._output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._text = ""
        self._number = 0
        self._finish, self._usage = "stop", Usage()
        self._error: dict[str, Any] | None = None

    def begin(self) -> Iterator[Event]:
        """Yields the first events."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self.response("in_progress"))

    def take(self, part: Part) -> Iterator[Event]:
        """Yields the events for one part of the answer."""
        if part.text:
            yield from self._grow("message", part.text)
        if part.reasoning:
            yield from self._grow("reasoning", part.reasoning)
        if part.calls or part.finish is not None:
            yield from self._close()
        for call in part.calls:
            yield from self._call(call)
        if part.finish is not None:
            self._finish, self._usage = part.finish, part.usage

    def end(self) -> Event:
        """Returns the last event."""
        status = "incomplete" if self._finish in _INCOMPLETE else "completed"
        return self._event(f"response.{status}", response=self.response(status))

    def fail(self, code: str, message: str) -> Event:
        """Returns the last event of a response that failed."""
        self._error = {"code": code, "message": message}
        return self._event("response.failed", response=self.response("failed"))

    def response(self, status: str | None = None) -> dict[str, Any]:
        """Returns the response as far as it is known."""
        status = status or ("incomplete" if self._finish in _INCOMPLETE else "completed")
        details = {"reason": _INCOMPLETE[self._finish]} if status == "incomplete" else None
        body, session = self._body, self._answer.session
        return {
            "id": self._id,
            "object": "response",
            "created_at": int(self._answer.created_at.timestamp()),
            "status": status,
            "error": self._error,
            "incomplete_details": details,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata") or {},
            "model": self._request.model,
            "output": [*self._output],
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "previous_response_id": body.get("previous_response_id"),
            "conversation": {"id": session.conversation_id} if session is not None else None,
            "temperature": body.get("temperature"),
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p"),
            "store": True,
            "usage": _usage(self._usage) if status in ("completed", "incomplete") else None,
        }

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def _grow(self, kind: str, text: str) -> Iterator[Event]:
        if self._open is None or self._open["type"] != kind:
            yield from self._close()
            yield from self._add(kind)
        self._text += text
        yield self._part_event("delta", delta=text)

    def _add(self, kind: str) -> Iterator[Event]:
        number = len(self._output)
        if kind == "message":
            content: dict[str, Any] = {"role": "assistant", "status": "in_progress", "content": []}
            self._open = {"type": kind, "id": f"msg_{self._suffix}_{number}", **content}
        else:
            self._open = {"type": kind, "id": f"rs_{self._suffix}_{number}", "summary": []}
        self._text = ""
        yield self._event("response.output_item.added", output_index=number, item=self._open)
        yield self._part_event("added", part=self._part(""))

    def _close(self) -> Iterator[Event]:
        item = self._open
        if item is None:
            return
        yield self._part_event("done", text=self._text)
        part = self._part(self._text)
        yield self._part_event("part_done", part=part)
        done = (
            {**item, "status": "completed", "content": [part]}
            if item["type"] == "message"
            else {
                **item,
                "summary": [part],
            }
        )
        number = len(self._output)
        self._output.append(done)
        self._open = None
        yield self._event("response.output_item.done", output_index=number, item=done)

    def _part(self, text: str) -> dict[str, Any]:
        assert self._open is not None, "a part belongs to an item"  # noqa: S101
        if self._open["type"] == "message":
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {"type": "summary_text", "text": text}

    def _part_event(self, kind: str, **fields: Any) -> Event:
        """Returns an event about the part of the open item."""
        assert self._open is not None, "a part belongs to an item"  # noqa: S101
        is_message = self._open["type"] == "message"
        part = "content_part" if is_message else "reasoning_summary_part"
        text = "output_text" if is_message else "reasoning_summary_text"
        names = {
            "added": f"{part}.added",
            "part_done": f"{part}.done",
            "delta": f"{text}.delta",
            "done": f"{text}.done",
        }
        if text == "output_text" and kind in ("delta", "done"):
            fields["logprobs"] = []
        index = {"content_index": 0} if is_message else {"summary_index": 0}
        where = {"item_id": self._open["id"], "output_index": len(self._output), **index}
        return self._event(f"response.{names[kind]}", **where, **fields)

    def _call(self, call: ToolCall) -> Iterator[Event]:
        number = len(self._output)
        item_id = f"fc_{self._suffix}_{number}"
        item = {"type": "function_call", "id": item_id, "call_id": call.id, "name": call.name}
        where = {"item_id": item_id, "output_index": number}
        begun, done = (
            {**item, "arguments": "", "status": "in_progress"},
            {
                **item,
                "arguments": call.arguments,
                "status": "completed",
            },
        )
        yield self._event("response.output_item.added", output_index=number, item=begun)
        yield self._event("response.function_call_arguments.delta", **where, delta=call.arguments)
        yield self._event("response.function_call_arguments.done", **where, arguments=call.arguments, name=call.name)
        self._output.append(done)
        yield self._event("response.output_item.done", output_index=number, item=done)


def _usage(usage: Usage) -> dict[str, Any]:
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens if usage.HasField("total_tokens") else prompt + completion,
    }


class ResponsesEndpoint:
    """Decodes requests of the Responses API, and encodes answers as one object or as a stream."""

    def __init__(self, service: ChatService, bodies: Bodies, *, strict: bool) -> None:
        self._service = service
        self._bodies = bodies
        self._strict = strict

    async def create(self, request: Request) -> Response:
        """Answers a request."""
        async with self._bodies.read_converted(request, self._converted) as (body, chat):
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
        if chat.config.stream_tokens:
            return event_stream(_events(answer, writer), headers)
        async with aclosing(answer.parts) as parts:
            async for part in parts:
                for _ in writer.take(part):
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
    async with aclosing(answer.parts) as parts:
        try:
            async for part in parts:
                for event in writer.take(part):
                    yield sse(event, event["type"])
        except Exception as error:
            failure = typed_error(error)
            if failure is not error:
                _log.exception("stream_failed")
            described = error_to_json(failure)["error"]
            event = writer.fail(described["code"], described["message"])
            yield sse(event, event["type"])
            return
    event = writer.end()
    yield sse(event, event["type"])
    answer.mark_delivered()
