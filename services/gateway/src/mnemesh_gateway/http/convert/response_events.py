"""Responses, and the events of their streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mnemesh_gateway.http.convert.responses import response_id
from mnemesh_gateway.model.answers import AnswerEvent, Called, Finish, Finished, Reasoned, Said, ToolCall, Usage
from mnemesh_gateway.model.chat import ChatRequest
from mnemesh_gateway.usecases.chat import Answer

_INCOMPLETE = {Finish.LENGTH: "max_output_tokens", Finish.CONTENT_FILTER: "content_filter"}
Event = dict[str, Any]


class ResponseWriter:
    """Builds a response from the events of an answer, and yields the events of its stream on the way."""

    def __init__(self, answer: Answer, request: ChatRequest, body: Mapping[str, Any]) -> None:
        self._answer = answer
        self._request = request
        self._body = body
        run_id = answer.begun.run_id if answer.begun is not None else "run-empty"
        self._suffix = run_id.removeprefix("run-")
        self._id = response_id(run_id)
        self._output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._text = ""
        self._number = 0
        self._finish, self._usage = Finish.STOP, Usage()
        self._error: dict[str, Any] | None = None

    def begin(self) -> Iterator[Event]:
        """Yields the first events."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self.response("in_progress"))

    def take(self, event: AnswerEvent) -> Iterator[Event]:
        """Yields the events for one event of the answer."""
        match event:
            case Said(text):
                yield from self._grow("message", text)
            case Reasoned(text):
                yield from self._grow("reasoning", text)
            case Called(calls):
                yield from self._close()
                for call in calls:
                    yield from self._call(call)
            case Finished(reason, usage):
                yield from self._close()
                self._finish, self._usage = reason, usage

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
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.total_tokens if usage.total_tokens is not None else prompt + completion,
    }
