"""Assembles an OpenAI answer from chunks, or from one plain body, tolerating deviations of servers."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mnemesh_types.messages import ContentPart, ReasoningPart, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.carried import MergedFields
from mnemesh_orchestrator.llm.errors import ProviderBadAnswer, ProviderUnavailable
from mnemesh_orchestrator.llm.openai_chat.carried import ChatCarried, call_fields
from mnemesh_orchestrator.llm.port import (
    AnsweredCall,
    FinishReason,
    LlmEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)

_FINISH = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}
_FIELDS = frozenset({"choices", "usage", "id", "object"})
"""The fields of which a completion has one at least."""


@dataclass(slots=True)
class _Call:
    wire_index: int | None
    id: str | None
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    others: MergedFields = field(default_factory=MergedFields)

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


class ChatAnswer:
    """An answer in progress. `add` takes a chunk and returns deltas; the properties hold everything so far."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._parts: list[tuple[type[TextPart] | type[ReasoningPart], list[str]]] = []
        self._calls: list[_Call] = []
        self._finish: str | None = None
        self._has_choices = False
        self._has_chunks = False
        self._id: object = None
        self._model: object = None
        self._usage: Mapping[str, Any] | None = None
        self._carried = ChatCarried()

    def add(self, chunk: object) -> Iterator[LlmEvent]:
        """Adds one chunk of a stream, or a whole completion.

        Raises:
            ProviderBadAnswer: it does not resemble a completion.
        """
        if not isinstance(chunk, dict) or _FIELDS.isdisjoint(chunk):
            raise ProviderBadAnswer(
                f"{self._provider} returned something other than a completion.", provider=self._provider
            )
        self._has_chunks = True
        self._id = self._id or chunk.get("id")
        self._model = self._model or chunk.get("model")
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = usage
        for choice in _rows(chunk.get("choices"))[:1]:
            self._has_choices = True
            is_whole = "message" in choice and "delta" not in choice
            message = _row(choice.get("delta") or choice.get("message"))
            self._carried.add(message, is_whole=is_whole)
            yield from self._add_message(message)
            self._finish = choice.get("finish_reason") or self._finish or ("stop" if is_whole else None)

    def check_complete(self) -> None:
        """Checks that a stream was complete when it ended.

        Raises:
            ProviderUnavailable: it ended without a finish reason, or was empty.
        """
        if self._finish == "error":
            raise ProviderUnavailable(f"{self._provider} ended in the middle of its answer.", provider=self._provider)
        if self._finish is None and (self._has_choices or not self._has_chunks):
            raise ProviderUnavailable(
                f"The stream from {self._provider} was cut before its end.", provider=self._provider
            )

    @property
    def content(self) -> tuple[ContentPart, ...]:
        """Text and reasoning in the order of arrival."""
        return tuple(
            TextPart("".join(pieces)) if kind is TextPart else ReasoningPart("".join(pieces), is_native=True)
            for kind, pieces in self._parts
        )

    @property
    def carried(self) -> str | None:
        """The other parts of the provider's message, for its next request."""
        return self._carried.encoded([call.others.value for call in self._calls])

    @property
    def tool_calls(self) -> tuple[AnsweredCall, ...]:
        """The tool calls in the order in which they started. A call without arguments has an empty object."""
        return tuple(
            AnsweredCall(call.name, call.arguments if call.arguments.strip() else "{}", call.id) for call in self._calls
        )

    @property
    def finish_reason(self) -> FinishReason:
        """The reason why the model stopped. Servers report "stop" for forced calls too, so calls take precedence."""
        finish = _FINISH.get(self._finish or "", FinishReason.STOP)
        return FinishReason.TOOL_CALLS if finish is FinishReason.STOP and self._calls else finish

    @property
    def usage(self) -> Usage:
        """The token counts of the provider. Missing counts stay None."""
        usage = self._usage or {}
        prompt, completion = _row(usage.get("prompt_tokens_details")), _row(usage.get("completion_tokens_details"))
        cached = prompt.get("cached_tokens")
        return Usage(
            prompt_tokens=_count(usage.get("prompt_tokens")),
            completion_tokens=_count(usage.get("completion_tokens")),
            total_tokens=_count(usage.get("total_tokens")),
            cached_input_tokens=_count(usage.get("prompt_cache_hit_tokens") if cached is None else cached),
            cache_write_tokens=_count(prompt.get("cache_write_tokens")),
            reasoning_tokens=_count(completion.get("reasoning_tokens")),
        )

    @property
    def body(self) -> dict[str, Any]:
        """The answer as a call without streaming would have returned it, for the trace."""
        texts = {kind: "".join(p for k, pieces in self._parts if k is kind for p in pieces) for kind, _ in self._parts}
        message: dict[str, Any] = {"role": "assistant", "content": texts.get(TextPart)}
        if ReasoningPart in texts:
            message["reasoning_content"] = texts[ReasoningPart]
        if self._calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self._calls
            ]
        choices = [{"index": 0, "message": message, "finish_reason": self._finish}] if self._has_choices else []
        return {"id": self._id, "model": self._model, "choices": choices, "usage": self._usage}

    def _add_message(self, message: Mapping[str, Any]) -> Iterator[LlmEvent]:
        if reasoning := _text(message.get("reasoning_content")) or _text(message.get("reasoning")):
            yield self._add_text(ReasoningPart, reasoning)
        for key in ("content", "refusal"):  # A refusal is text of the model, which the user reads.
            if text := _text(message.get(key)):
                yield self._add_text(TextPart, text)
        for piece in _rows(message.get("tool_calls")):
            yield from self._add_call(piece)

    def _add_text(self, kind: type[TextPart] | type[ReasoningPart], text: str) -> LlmEvent:
        if not self._parts or self._parts[-1][0] is not kind:
            self._parts.append((kind, []))
        self._parts[-1][1].append(text)
        return TextDelta(text) if kind is TextPart else ReasoningDelta(text)

    def _add_call(self, piece: Mapping[str, Any]) -> Iterator[LlmEvent]:
        function = _row(piece.get("function"))
        name, arguments = function.get("name") or "", function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        call = self._call_of(piece, name)
        if name and name != call.name and not call.pieces:
            call.name += name
        call.id = call.id or piece.get("id") or None
        if others := call_fields(piece):
            call.others.add(others)
        if arguments:
            call.pieces.append(arguments)
        if call.name and (name or arguments):
            yield ToolCallDelta(self._calls.index(call), call.name, arguments or "")

    def _call_of(self, piece: Mapping[str, Any], name: str) -> _Call:
        """Returns the call of a piece: by its index, or by other signs if servers omit or repeat it."""
        index = piece.get("index") if isinstance(piece.get("index"), int) else None
        candidates = [call for call in self._calls if index is None or call.wire_index in (index, None)]
        last = candidates[-1] if candidates else None
        if last is None or (name and self._is_another(last, piece, name)):
            last = _Call(index, piece.get("id") or None)
            self._calls.append(last)
        return last

    def _is_another(self, last: _Call, piece: Mapping[str, Any], name: str) -> bool:
        """Returns whether a piece that names a function starts another call. Some servers repeat the name."""
        other_id = bool(piece.get("id") and last.id and piece["id"] != last.id)
        return other_id or (bool(last.pieces) and (name != last.name or _is_json(last.arguments)))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _text(value: object) -> str:
    """Returns text, either plain or joined from typed parts."""
    if isinstance(value, str):
        return value
    return "".join(str(part.get("text") or "") for part in _rows(value)) if value else ""


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _row(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None
