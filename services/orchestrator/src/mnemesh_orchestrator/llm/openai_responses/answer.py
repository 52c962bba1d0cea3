"""Assembles an answer of the Responses API from its events, or from one plain body."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mnemesh_types.messages import ContentPart, ReasoningPart, SummarizedReasoningPart, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.block_order import CALL, REASONING, TEXT, carried_order, other_fields
from mnemesh_orchestrator.llm.carried import encode_carried
from mnemesh_orchestrator.llm.dialects import Api
from mnemesh_orchestrator.llm.errors import ProviderBadAnswer, ProviderUnavailable
from mnemesh_orchestrator.llm.openai_responses.render import PHASE
from mnemesh_orchestrator.llm.port import (
    AnsweredCall,
    FinishReason,
    LlmEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from mnemesh_orchestrator.llm.provider_errors import error_from_response

_INCOMPLETE: Final = {
    "max_output_tokens": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}
_TEXT_DELTAS: Final = frozenset({"response.output_text.delta", "response.refusal.delta"})
_REASONING_DELTAS: Final = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})
_END_EVENTS: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


class ResponsesAnswer:
    """An answer in progress. `add` takes an event and returns deltas; the properties hold everything so far."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._items: dict[int, dict[str, Any]] = {}
        self._texts: dict[tuple[int, str, int], list[str]] = {}
        self._response: Mapping[str, Any] | None = None

    def add(self, event: object) -> Iterator[LlmEvent]:
        """Adds one event of a stream, or a whole response.

        Raises:
            ProviderError: the event reports that the answer failed.
            ProviderBadAnswer: it is not an event of a response.
        """
        if not isinstance(event, Mapping):
            raise ProviderBadAnswer(
                f"{self._provider} returned something other than an event.", provider=self._provider
            )
        match event:
            case {"type": "error"}:
                raise error_from_response(self._provider, None, event)
            case {"type": str(kind), "response": Mapping() as response} if kind in _END_EVENTS:
                yield from self._end(response, is_streamed=True)
            case {"type": "response.output_item.added", "output_index": int(index), "item": Mapping() as item}:
                yield from self._open(index, item)
            case {"type": "response.output_item.done", "output_index": int(index), "item": Mapping() as item}:
                yield from self._close(index, item)
            case {"type": str(kind), "output_index": int(index), "delta": str(delta)}:
                yield from self._extend(kind, index, event, delta)
            case {"type": "response.reasoning_summary_part.added", "summary_index": int(number)} if number > 0:
                yield ReasoningDelta("\n")
            case {"object": "response", "output": list()}:
                yield from self._end(event, is_streamed=False)
            case {"type": str()}:
                pass  # created, in_progress, the ends of parts and texts, and future events of the API.
            case _:
                message = f"{self._provider} returned something other than an event of a response."
                raise ProviderBadAnswer(message, provider=self._provider)

    def check_complete(self) -> None:
        """Checks that a stream was complete when it ended.

        Raises:
            ProviderUnavailable: it ended before the response was complete.
        """
        if self._response is None:
            message = f"The stream from {self._provider} was cut before its end."
            raise ProviderUnavailable(message, provider=self._provider)

    @property
    def content(self) -> tuple[ContentPart, ...]:
        """Text and reasoning in the order of arrival."""
        return tuple(part for index, item in sorted(self._items.items()) for part in self._parts(index, item))

    @property
    def tool_calls(self) -> tuple[AnsweredCall, ...]:
        """The tool calls in order. A call without arguments has an empty object."""
        return tuple(
            AnsweredCall(str(item.get("name") or ""), self._arguments(index, item), item.get("call_id") or None)
            for index, item in sorted(self._items.items())
            if item.get("type") == "function_call"
        )

    @property
    def carried(self) -> str | None:
        """The order of the items, and those that are no text, encrypted reasoning or call."""
        return encode_carried(Api.RESPONSES, {"order": carried_order(self._ordered())})

    @property
    def finish_reason(self) -> FinishReason:
        """The reason why the model stopped."""
        response = self._response or {}
        if response.get("status") == "incomplete":
            return _INCOMPLETE.get(str(_row(response.get("incomplete_details")).get("reason")), FinishReason.LENGTH)
        return FinishReason.TOOL_CALLS if self.tool_calls else FinishReason.STOP

    @property
    def usage(self) -> Usage:
        """The token counts of the provider. Missing counts stay None."""
        usage = _row((self._response or {}).get("usage"))
        read, written = _row(usage.get("input_tokens_details")), _row(usage.get("output_tokens_details"))
        return Usage(
            prompt_tokens=_count(usage.get("input_tokens")),
            completion_tokens=_count(usage.get("output_tokens")),
            total_tokens=_count(usage.get("total_tokens")),
            cached_input_tokens=_count(read.get("cached_tokens")),
            cache_write_tokens=_count(read.get("cache_write_tokens")),
            reasoning_tokens=_count(written.get("reasoning_tokens")),
        )

    @property
    def body(self) -> dict[str, Any]:
        """The answer as a call without streaming would have returned it, for the trace."""
        head = {key: value for key, value in (self._response or {}).items() if key in _TRACED_FIELDS}
        return {**head, "output": [item for _, item in sorted(self._items.items())]}

    def _open(self, index: int, item: Mapping[str, Any]) -> Iterator[LlmEvent]:
        self._items[index] = dict(item)
        if item.get("type") == "function_call" and item.get("name"):
            yield ToolCallDelta(self._ordinal(index), str(item["name"]), str(item.get("arguments") or ""))

    def _close(self, index: int, item: Mapping[str, Any]) -> Iterator[LlmEvent]:
        """Takes the final form of an item, which replaces its pieces. An item that was never opened is emitted now."""
        was_open = index in self._items
        self._items[index] = dict(item)
        if not was_open:
            yield from self._deltas(index, item)

    def _extend(self, kind: str, index: int, event: Mapping[str, Any], delta: str) -> Iterator[LlmEvent]:
        if kind in _TEXT_DELTAS or kind in _REASONING_DELTAS:
            field = "summary_index" if "summary" in kind else "content_index"
            self._texts.setdefault((index, field, int(event.get(field) or 0)), []).append(delta)
            self._items.setdefault(index, {"type": "message" if kind in _TEXT_DELTAS else "reasoning"})
            yield TextDelta(delta) if kind in _TEXT_DELTAS else ReasoningDelta(delta)
        elif kind == "response.function_call_arguments.delta":
            item = self._items.setdefault(index, {"type": "function_call"})
            self._texts.setdefault((index, "arguments", 0), []).append(delta)
            yield ToolCallDelta(self._ordinal(index), str(item.get("name") or ""), delta)

    def _end(self, response: Mapping[str, Any], *, is_streamed: bool) -> Iterator[LlmEvent]:
        if response.get("status") in ("failed", "cancelled") or response.get("error"):
            raise error_from_response(self._provider, None, {"error": response.get("error") or {}})
        self._response = response
        for index, item in enumerate(_rows(response.get("output"))):
            if index not in self._items:
                self._items[index] = dict(item)
                yield from self._deltas(index, item)
            elif not is_streamed:
                self._items[index] = dict(item)

    def _deltas(self, index: int, item: Mapping[str, Any]) -> Iterator[LlmEvent]:
        if item.get("type") == "function_call":
            yield ToolCallDelta(self._ordinal(index), str(item.get("name") or ""), str(item.get("arguments") or ""))
        for part in self._parts(index, item):
            match part:
                case TextPart(text):
                    yield TextDelta(text)
                case ReasoningPart(text):
                    yield ReasoningDelta(text)
                case SummarizedReasoningPart(summaries=summaries) if summaries:
                    yield ReasoningDelta("\n".join(summaries))

    def _ordered(self) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
        for index, item in sorted(self._items.items()):
            match item.get("type"):
                case "message":
                    yield from ((TEXT, {}) for _ in self._text_of(index, item))
                case "function_call":
                    yield CALL, other_fields(item, _HELD_OF_CALL)
                case "reasoning":
                    parts = tuple(self._reasoning_of(index, item))
                    is_plain = any(isinstance(part, ReasoningPart) for part in parts)
                    yield from ((None, item) if is_plain else (REASONING, {}) for _ in parts)
                case _:
                    yield None, item

    def _parts(self, index: int, item: Mapping[str, Any]) -> Iterator[ContentPart]:
        if item.get("type") == "message":
            phase = item.get("phase")
            for text in self._text_of(index, item):
                yield TextPart(text, f"{PHASE}{phase}" if isinstance(phase, str) else None)
        elif item.get("type") == "reasoning":
            yield from self._reasoning_of(index, item)

    def _text_of(self, index: int, item: Mapping[str, Any]) -> Iterator[str]:
        parts = _rows(item.get("content"))
        texts = [str(part.get("text") or part.get("refusal") or "") for part in parts]
        # A refusal is text of the model, which the user reads.
        yield from (text for text in (texts or self._streamed(index, "content_index")) if text)

    def _reasoning_of(self, index: int, item: Mapping[str, Any]) -> Iterator[ContentPart]:
        summaries = tuple(str(row.get("text") or "") for row in _rows(item.get("summary")))
        summaries = summaries or tuple(self._streamed(index, "summary_index"))
        encrypted, content = item.get("encrypted_content"), _rows(item.get("content"))
        plain_text = "".join(str(row.get("text") or "") for row in content) or "".join(
            self._streamed(index, "content_index")
        )
        if plain_text:  # Open-weight models return their reasoning as text.
            yield ReasoningPart(plain_text, is_native=True)
        elif summaries or encrypted:
            yield SummarizedReasoningPart(str(item.get("id") or ""), summaries, encrypted or None)

    def _streamed(self, index: int, field: str) -> list[str]:
        parts = sorted((key, pieces) for key, pieces in self._texts.items() if key[:2] == (index, field))
        return ["".join(pieces) for _, pieces in parts]

    def _arguments(self, index: int, item: Mapping[str, Any]) -> str:
        text = str(item.get("arguments") or "") or "".join(self._streamed(index, "arguments"))
        return text if text.strip() else "{}"

    def _ordinal(self, index: int) -> int:
        calls = sorted(position for position, item in self._items.items() if item.get("type") == "function_call")
        return calls.index(index) if index in calls else len(calls)


_HELD_OF_CALL: Final = frozenset({"type", "id", "call_id", "name", "arguments", "status"})
_TRACED_FIELDS: Final = frozenset({"id", "object", "model", "status", "incomplete_details", "usage"})


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _row(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None
