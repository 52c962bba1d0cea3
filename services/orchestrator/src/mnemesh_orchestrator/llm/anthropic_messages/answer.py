"""Assembles an Anthropic answer from its events, or from one plain message."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mnemesh_types.messages import ContentPart, OmittedReasoningPart, ReasoningPart, RedactedReasoningPart, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.block_order import CALL, REASONING, TEXT, carried_order, other_fields
from mnemesh_orchestrator.llm.carried import encode_carried
from mnemesh_orchestrator.llm.dialects import Api
from mnemesh_orchestrator.llm.errors import ProviderBadAnswer, ProviderUnavailable
from mnemesh_orchestrator.llm.port import (
    AnsweredCall,
    FinishReason,
    LlmEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)

_FINISH = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "pause_turn": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.CONTENT_FILTER,
}
_KINDS = {"text": TEXT, "thinking": REASONING, "redacted_thinking": REASONING, "tool_use": CALL}
_HELD = frozenset({"type", "text", "thinking", "signature", "data", "id", "name", "input"})
_APPENDED = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class MessagesAnswer:
    """An answer in progress. `add` takes an event and returns deltas; the properties hold everything so far."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._stop_reason: str | None = None

    def add(self, event: Any) -> Iterator[LlmEvent]:
        """Adds one event of a stream, or a whole message.

        Raises:
            ProviderBadAnswer: it is neither.
        """
        match event:
            case {"type": "message_start", "message": Mapping() as head}:
                self._start(head)
            case {"type": "content_block_start", "index": int(index), "content_block": Mapping() as block}:
                yield from self._open(index, block)
            case {"type": "content_block_delta", "index": int(index), "delta": Mapping() as delta}:
                yield from self._extend(index, delta)
            case {"type": "message_delta", "delta": Mapping() as delta}:
                self._stop_reason = delta.get("stop_reason") or self._stop_reason
                self._take_usage(event.get("usage"))
            case {"type": "message", "content": list(blocks)}:
                self._start(event)
                self._stop_reason = event.get("stop_reason") or "end_turn"
                for index, block in enumerate(blocks):
                    yield from self._open(index, block)
            case {"type": str()}:
                pass  # message_stop, content_block_stop, ping, and future events of the API.
            case _:
                message = f"{self._provider} sent something that is no event of a message."
                raise ProviderBadAnswer(message, provider=self._provider)

    def check_complete(self) -> None:
        """Checks that a stream was complete when it ended.

        Raises:
            ProviderUnavailable: it ended without a stop reason.
        """
        if self._stop_reason is None:
            message = f"The stream from {self._provider} was cut before its end."
            raise ProviderUnavailable(message, provider=self._provider)

    @property
    def content(self) -> tuple[ContentPart, ...]:
        """Text and thinking in the order of arrival."""
        return tuple(part for _, block in sorted(self._blocks.items()) if (part := _part(block)) is not None)

    @property
    def tool_calls(self) -> tuple[AnsweredCall, ...]:
        """The tool calls in order."""
        return tuple(
            AnsweredCall(str(block.get("name") or ""), self._arguments(index, block), block.get("id"))
            for index, block in sorted(self._blocks.items())
            if block.get("type") == "tool_use"
        )

    @property
    def carried(self) -> str | None:
        """The order of the blocks, and those that are no text, thinking or call."""
        return encode_carried(Api.MESSAGES, {"order": carried_order(self._ordered())})

    @property
    def finish_reason(self) -> FinishReason:
        """The reason why the model stopped."""
        return _FINISH.get(self._stop_reason or "", FinishReason.STOP)

    @property
    def usage(self) -> Usage:
        """The token counts. Cached tokens are part of the prompt, as everywhere in mnemesh."""
        uncached, completion = _count(self._usage.get("input_tokens")), _count(self._usage.get("output_tokens"))
        read = _count(self._usage.get("cache_read_input_tokens"))
        written = _count(self._usage.get("cache_creation_input_tokens"))
        prompt = None if uncached is None else uncached + (read or 0) + (written or 0)
        details = self._usage.get("output_tokens_details")
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=None if prompt is None or completion is None else prompt + completion,
            cached_input_tokens=read,
            cache_write_tokens=written,
            reasoning_tokens=_count(details.get("thinking_tokens")) if isinstance(details, Mapping) else None,
        )

    @property
    def body(self) -> dict[str, Any]:
        """The answer as a call without streaming would have returned it, for the trace."""
        blocks = [
            {**block, "input": _decoded(self._arguments(index, block))} if block.get("type") == "tool_use" else block
            for index, block in sorted(self._blocks.items())
        ]
        return {**self._head, "content": blocks, "stop_reason": self._stop_reason, "usage": self._usage}

    def _start(self, head: Mapping[str, Any]) -> None:
        self._head = {key: head[key] for key in ("id", "type", "role", "model") if key in head}
        self._take_usage(head.get("usage"))

    def _take_usage(self, usage: object) -> None:
        if isinstance(usage, Mapping):
            self._usage.update({key: value for key, value in usage.items() if value is not None})

    def _open(self, index: int, block: Mapping[str, Any]) -> Iterator[LlmEvent]:
        self._blocks[index] = dict(block)
        kind = block.get("type")
        if kind == "tool_use":
            input_ = block.get("input")
            self._inputs[index] = [json.dumps(input_, ensure_ascii=False)] if input_ else []
            yield ToolCallDelta(self._ordinal(index), str(block.get("name") or ""), "".join(self._inputs[index]))
        elif kind == "text" and block.get("text"):
            yield TextDelta(str(block["text"]))
        elif kind == "thinking" and block.get("thinking"):
            yield ReasoningDelta(str(block["thinking"]))

    def _extend(self, index: int, delta: Mapping[str, Any]) -> Iterator[LlmEvent]:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        kind = str(delta.get("type"))
        if kind == "input_json_delta":
            piece = str(delta.get("partial_json") or "")
            self._inputs.setdefault(index, []).append(piece)
            if piece:
                yield ToolCallDelta(self._ordinal(index), str(block.get("name") or ""), piece)
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        elif (key := _APPENDED.get(kind)) is not None:
            piece = str(delta.get(key) or "")
            block[key] = str(block.get(key) or "") + piece
            if piece and key == "text":
                yield TextDelta(piece)
            elif piece and key == "thinking":
                yield ReasoningDelta(piece)

    def _ordered(self) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
        for index, block in sorted(self._blocks.items()):
            kind = _KINDS.get(str(block.get("type")))
            if kind is None and self._inputs.get(index):
                yield None, {**block, "input": _decoded("".join(self._inputs[index]))}
            elif kind != TEXT or block.get("text"):
                yield kind, block if kind is None else other_fields(block, _HELD)

    def _ordinal(self, index: int) -> int:
        calls = sorted(position for position, block in self._blocks.items() if block.get("type") == "tool_use")
        return calls.index(index) if index in calls else len(calls)

    def _arguments(self, index: int, block: Mapping[str, Any]) -> str:
        text = "".join(self._inputs.get(index, ()))
        return text if text.strip() else json.dumps(block.get("input") or {}, ensure_ascii=False)


def _part(block: Mapping[str, Any]) -> ContentPart | None:
    match block:
        case {"type": "text", "text": str(text)} if text:
            return TextPart(text)
        case {"type": "thinking"}:
            text, signature = str(block.get("thinking") or ""), block.get("signature") or None
            return ReasoningPart(text, is_native=True, signature=signature) if text else OmittedReasoningPart(signature)
        case {"type": "redacted_thinking", "data": str(data)}:
            return RedactedReasoningPart(data)
    return None


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None
