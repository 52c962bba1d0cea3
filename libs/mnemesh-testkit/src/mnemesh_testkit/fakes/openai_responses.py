"""A fake of OpenAI's Responses API, streamed and whole."""

import json
from collections.abc import Iterator
from typing import Any

from mnemesh_testkit.fakes.server import AUTOMATIC, Call, FakeProvider, Fault, Reply, Script, Usage, pieces

_CREATED = 1_767_225_600
_OUT_OF_TOKENS = frozenset({"length", "max_output_tokens"})


class FakeResponses(FakeProvider):
    """Speaks the Responses API at `base_url`.

    The reasoning of a reply is sent as a summary with an encrypted original, its `signature`. A reply's
    `finish_reason` "length" or "content_filter" leaves the response incomplete.

    Args:
        script: what it answers.
        call_id: one id that every tool call is given; None counts them up.
    """

    _path = "/v1/responses"

    def __init__(self, script: Script = (), *, call_id: str | None = None) -> None:
        super().__init__(script)
        self._call_id = call_id
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
            return _event(kind, sequence_number=sequence - 1, **fields)

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
        kind, status, code, message = "invalid_request_error", fault.status, fault.code, fault.message
        if fault.kind == "overloaded":
            kind, status, message = "server_error", 503, "The engine is currently overloaded, please try again later"
        elif fault.kind == "context_overflow":
            code = "context_length_exceeded"
            message = "Your input exceeds the context window of this model. Please adjust your input and try again."
        elif status == 429:
            kind, code = "requests", code or "rate_limit_exceeded"
        elif status >= 500:
            kind = "server_error"
        return status, {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def _error_event(self, fault: Fault) -> bytes:
        """As the API ends a response that failed on its way; a message "error" makes it the bare error event."""
        if fault.code is not None and fault.code.startswith("event:"):
            code = fault.code.removeprefix("event:")
            return _event("error", code=code, message=fault.message, param=None, sequence_number=99)
        failed = {**self._head({}), "status": "failed", "output": [], "usage": None}
        failed["error"] = {"code": fault.code, "message": fault.message}
        return _event("response.failed", response=failed, sequence_number=99)

    def _empty(self, body: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        whole = self._finished(self._head(body), [], Reply(usage=Usage(output=0)))
        return _event("response.completed", response=whole, sequence_number=0), whole

    def _head(self, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": f"resp_{self._number():032d}",
            "object": "response",
            "created_at": _CREATED,
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
        automatic = self._call_id or f"call_{number:024d}"
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
            "usage": None if reply.usage is None else _usage(reply.usage),
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


def _usage(usage: Usage) -> dict[str, Any]:
    shown: dict[str, Any] = {"input_tokens": usage.input, "output_tokens": usage.output}
    if usage.input is not None and usage.output is not None:
        shown["total_tokens"] = usage.input + usage.output
    if usage.cached is not None:
        shown["input_tokens_details"] = {"cached_tokens": usage.cached}
    if usage.reasoning is not None:
        shown["output_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return {key: value for key, value in shown.items() if value is not None}


def _event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()
