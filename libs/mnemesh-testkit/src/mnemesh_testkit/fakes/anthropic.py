"""A fake Anthropic: the messages API, streamed and whole."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mnemesh_testkit.fakes.server import AUTOMATIC, Call, FakeProvider, Fault, Reply, Script, Usage, pieces

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class FakeAnthropic(FakeProvider):
    """Speaks the messages API at `base_url`.

    Args:
        script: what it answers.
    """

    _path = "/v1/messages"

    def __init__(self, script: Script = ()) -> None:
        super().__init__(script)
        self._calls_made = 0
        self._answers_made = 0

    def _events(self, reply: Reply, body: dict[str, Any]) -> Iterator[tuple[bytes, int | None]]:
        usage = reply.usage or Usage(input=0, output=0)
        head = {**self._head(body), "content": [], "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message={**head, "usage": {**_input_usage(usage), "output_tokens": 1}}), None
        yield _event("ping"), None
        for index, block in enumerate(self._blocks(reply)):
            yield _event("content_block_start", index=index, content_block=_opened(block)), None
            for ordinal, delta in enumerate(_deltas(block, reply.piece_size)):
                is_text = delta["type"] == "text_delta"
                yield _event("content_block_delta", index=index, delta=delta), ordinal if is_text else None
            yield _event("content_block_stop", index=index), None
        stop = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
        yield _event("message_delta", delta=stop, usage=_output_usage(usage)), None
        yield _event("message_stop"), None

    def _whole(self, reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
        usage = reply.usage or Usage(input=0, output=0)
        return {
            **self._head(body),
            "content": self._blocks(reply),
            "stop_reason": _stop_reason(reply),
            "stop_sequence": None,
            "usage": {**_input_usage(usage), **_output_usage(usage)},
        }

    def _error(self, fault: Fault) -> tuple[int, dict[str, Any]]:
        status, message = fault.status, fault.message
        if fault.kind == "overloaded":
            status = 529
        elif fault.kind == "context_overflow":
            message = f"prompt is too long: {fault.after} tokens > {fault.message} maximum"
        kind = fault.code or _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return status, {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_fake"}

    def _error_event(self, fault: Fault) -> bytes:
        return _event("error", error={"type": fault.code, "message": fault.message})

    def _empty(self, body: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        reply = Reply(text=None, usage=Usage(output=0))
        return b"".join(event for event, _ in self._events(reply, body)), self._whole(reply, body)

    def _head(self, body: dict[str, Any]) -> dict[str, Any]:
        self._answers_made += 1
        message_id = f"msg_{self._answers_made:024d}"
        return {"id": message_id, "type": "message", "role": "assistant", "model": body.get("model", "claude-fake")}

    def _blocks(self, reply: Reply) -> list[dict[str, Any]]:
        if reply.blocks:
            return [dict(block) for block in reply.blocks]
        blocks: list[dict[str, Any]] = []
        if reply.reasoning is not None:
            signature = reply.signature or "c2lnbmF0dXJl"
            blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": signature})
        if reply.redacted is not None:
            blocks.append({"type": "redacted_thinking", "data": reply.redacted})
        if said := reply.text or reply.refusal:
            blocks.append({"type": "text", "text": said})
        blocks.extend(self._call(call) for call in reply.calls)
        return blocks

    def _call(self, call: Call) -> dict[str, Any]:
        self._calls_made += 1
        automatic = f"toolu_{self._calls_made:024d}"
        given = call.arguments if isinstance(call.arguments, str) else dict(call.arguments)
        return {
            "type": "tool_use",
            "id": automatic if call.id == AUTOMATIC else call.id,
            "name": call.name,
            "input": given,
        }


def _opened(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block as its start event shows it: everything that deltas bring is still empty."""
    empty: dict[str, dict[str, Any]] = {
        "text": {"text": ""},
        "thinking": {"thinking": "", "signature": ""},
        "tool_use": {"input": {}},
    }
    return {**block, **empty.get(block["type"], {})}


def _deltas(block: Mapping[str, Any], size: int) -> Iterator[dict[str, Any]]:
    match block["type"]:
        case "text":
            yield from ({"type": "text_delta", "text": piece} for piece in pieces(block["text"], size))
        case "thinking":
            yield from ({"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"], size))
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "tool_use":
            given = block["input"]
            text = given if isinstance(given, str) else json.dumps(given) if given else ""
            yield from ({"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(text, size)])


def _has_calls(reply: Reply) -> bool:
    return bool(reply.calls) or any(block["type"] == "tool_use" for block in reply.blocks)


def _stop_reason(reply: Reply) -> str:
    return reply.finish_reason or ("tool_use" if _has_calls(reply) else "refusal" if reply.refusal else "end_turn")


def _input_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_written,
        "cache_read_input_tokens": usage.cached,
    }


def _output_usage(usage: Usage) -> dict[str, Any]:
    shown: dict[str, Any] = {"output_tokens": usage.output}
    if usage.reasoning is not None:
        shown["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return shown


def _event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data}, separators=(',', ':'))}\n\n".encode()
