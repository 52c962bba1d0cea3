"""Assembles an answer from the pieces of a stream, for the adapters of all APIs."""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from io import StringIO
from typing import Any, Final

from mnemesh_types.messages import ContentPart, ReasoningPart, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.errors import ProviderBadAnswer, ProviderUnavailable
from mnemesh_orchestrator.llm.port import AnsweredCall, FinishReason, LlmEvent, ReasoningDelta, TextDelta, ToolCallDelta
from mnemesh_orchestrator.llm.think_tags import ThinkTags, split_lone_closing

MAX_CALLS: Final = 128
"""The largest number of tool calls of an answer."""
MAX_PARTS: Final = 4096
"""The largest number of parts of an answer: texts, reasoning, calls and what only the provider can read."""
MAX_ANSWER_BYTES: Final = 8 << 20
"""The largest number of bytes of all texts and arguments of an answer."""

_MAX_REPETITIONS: Final = 8
_DECODER: Final = json.JSONDecoder(strict=False)
_BLANK: Final = re.compile(r"\s*")
_JSON_TOKEN: Final = re.compile(r'\\(?:.|$)|["{}\[\]]', re.DOTALL)

# OpenAI, Anthropic, Gemini, Mistral, Cohere, Together, Bedrock, DeepSeek and Zhipu, whatever their case.
_REASONS: Final[Mapping[str, FinishReason]] = {
    **dict.fromkeys(("tool_calls", "tool_use", "tool_call", "function_call"), FinishReason.TOOL_CALLS),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_length", "max_length"), FinishReason.LENGTH),
    "model_context_window_exceeded": FinishReason.LENGTH,
    **dict.fromkeys(("content_filter", "content_filtered", "refusal", "sensitive"), FinishReason.CONTENT_FILTER),
    **dict.fromkeys(("safety", "image_safety", "recitation", "blocklist", "spii"), FinishReason.CONTENT_FILTER),
    **dict.fromkeys(("prohibited_content", "guardrail_intervened", "error_toxic"), FinishReason.CONTENT_FILTER),
}
# Gemini, Cohere and gateways. The call is missing or damaged, and a text before it is not the answer.
_BAD_CALL: Final = frozenset(
    {"malformed_function_call", "function_call_filter", "unexpected_tool_call", "too_many_tool_calls"}
    | {"malformed_tool_call", "invalid_tool_call", "tool_call_error", "tool_calls_error", "malformed_response"}
    | {"missing_thought_signature"}
)
_INTERRUPTED: Final = frozenset(
    {"error", "network_error", "insufficient_system_resource", "engine_error", "abort", "cancelled", "user_cancel"}
)


class Kind(StrEnum):
    """The kind of a part. A part that only the provider can read is opaque."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"
    OPAQUE = "opaque"


class Pieces:
    """A text that arrives in pieces."""

    __slots__ = ("_buffer", "length")

    def __init__(self) -> None:
        self._buffer = StringIO(newline="")
        self.length = 0

    def add(self, piece: str) -> None:
        """Appends a piece."""
        self._buffer.write(piece)
        self.length += len(piece)

    def equals(self, text: str) -> bool:
        """Returns whether the text so far is `text`, with as much work as `text` is long."""
        return len(text) == self.length and text == self._buffer.getvalue()

    def __str__(self) -> str:
        return self._buffer.getvalue()


class ArgumentPieces(Pieces):
    """The arguments of a call. They are whole once the pieces form a JSON object."""

    __slots__ = ("_depth", "_has_begun", "_in_escape", "_in_string")

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._has_begun = self._in_string = self._in_escape = False

    @property
    def is_whole(self) -> bool:
        """Whether every object, list and string that began has ended."""
        return self._has_begun and self._depth == 0 and not self._in_string

    def unsaid(self, text: str) -> str:
        """Returns what a piece adds. Some servers repeat in a piece all that came before it."""
        is_repeated = self.length and text.startswith("{") and text.startswith(self._beginning(len(text)))
        return text[self.length :] if is_repeated else text

    def repeats(self, text: str) -> bool:
        """Returns whether a text has the same value, with as much work as the text is long."""
        known = self._beginning(2 * len(text) + 16)
        return known == text or ((value := _object_in(text)) is not None and value == _object_in(known))

    def _beginning(self, length: int) -> str:
        """Returns the whole text, or a text that nothing begins with if it is longer than `length`."""
        return self._buffer.getvalue() if self.length <= length else "\0"

    def add(self, piece: str) -> None:
        """Appends a piece."""
        super().add(piece)
        start = 1 if self._in_escape else 0
        self._in_escape = self._in_escape and not piece
        for token in _JSON_TOKEN.finditer(piece, start):
            sign = token[0]
            if sign == '"':
                self._in_string = not self._in_string
            elif sign[0] == "\\":
                self._in_escape = len(sign) == 1
            elif not self._in_string:
                self._has_begun = True
                self._depth += 1 if sign in "{[" else -1


@dataclass(slots=True, eq=False)
class Part:
    """A part of an answer in progress.

    `texts` are its texts by a key of the adapter, which is None for a part with one text. `fields` are what else the
    provider sent with it. `is_closed` means that the provider ended it, and `has_begun` that a piece of it came.
    `thoughts` is the reasoning that its text had in tags.
    """

    kind: Kind
    fields: dict[str, Any] = field(default_factory=dict)
    texts: dict[Hashable, Pieces] = field(default_factory=dict)
    is_closed: bool = False
    has_begun: bool = False
    thoughts: Pieces | None = None

    @property
    def text(self) -> str:
        return str(self.texts.get(None, ""))

    @property
    def wire_text(self) -> str:
        """The text as the provider sent it, for the trace."""
        return self.text if self.thoughts is None else f"<think>{self.thoughts}</think>{self.text}"


@dataclass(slots=True, eq=False)
class CallPart(Part):
    """A tool call in progress. `ordinal` is its place among the calls once a delta has announced it."""

    index: Hashable = None
    provider_id: str | None = None
    name: str = ""
    arguments: ArgumentPieces = field(default_factory=ArgumentPieces)
    ordinal: int | None = None


class StreamedAnswer(ABC):
    """An answer that arrives in pieces. Its properties hold everything so far; they are valid once it has ended.

    A subclass reads the events of an API and calls the methods that begin with `_add` and `_open`.
    """

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._parts: list[Part] = []
        self._calls: list[CallPart] = []
        self._calls_by_key: dict[tuple[Hashable, str | None], CallPart] = {}
        self._calls_by_id: dict[str, CallPart] = {}
        self._announced = 0
        self._bytes = 0
        self.is_settled = False
        """Whether the answer is finished and its last event added nothing, so that nothing more is to be expected."""
        self._has_ended = False
        self._has_unknown = False
        self._events: list[LlmEvent] = []
        self._tags = ThinkTags()
        self._tagged: Part | None = None
        self._tagged_key: Hashable = None

    def add(self, event: Any) -> list[LlmEvent]:
        """Adds an event of a stream, or a whole answer, and returns the deltas that it causes.

        Raises:
            ProviderError: the event reports an error, or the answer exceeds a bound.
        """
        before = self._bytes
        self._read(event)
        self.is_settled = self.is_finished and self._bytes == before
        return self._take_events()

    def end(self, *, is_done: bool) -> list[LlmEvent]:
        """Ends the answer and returns the last deltas.

        Without a finish reason an answer is complete if its content is and the provider said that it ended. If the
        stream just ended, only calls can be known to be complete: the end of a text cannot.

        Args:
            is_done: whether the stream ended with the provider's mark of its end.

        Raises:
            ProviderUnavailable: the stream ended before the answer.
            ProviderBadAnswer: it had nothing that the API documents, or the provider could not read the model's call.
        """
        if _plain(word := self.finish_word) in _BAD_CALL:
            message = f"{self._provider} could not read the model's tool call. It ended with the reason {word!r}."
            raise ProviderBadAnswer(message, provider=self._provider, finish_reason=str(word))
        is_done = is_done or self._has_ended
        if self._tagged is not None and not self._tags.is_over:
            self._add_tagged(self._tagged, *self._tags.end())
        for call in self._calls:
            self._announce(call)
        if not self.is_finished and (self._parts or not self._may_be_empty):
            calls = self._ordered_calls()
            are_whole = all(
                call.is_closed or call.arguments.is_whole or (is_done and not call.arguments.length) for call in calls
            )
            if self._has_unknown and not self._parts:
                message = f"{self._provider} returned something other than an answer of its API."
                raise ProviderBadAnswer(message, provider=self._provider)
            if is_done and not self._parts:
                raise ProviderBadAnswer(f"{self._provider} returned an empty answer.", provider=self._provider)
            if not (are_whole and (calls or (is_done and self._parts))):
                message = f"The stream from {self._provider} was cut before its end."
                raise ProviderUnavailable(message, provider=self._provider)
        return self._take_events()

    @property
    def content(self) -> tuple[ContentPart, ...]:
        """Reasoning and text in the order of arrival."""
        found = list[ContentPart]()
        for part in self._parts:
            if part.thoughts is not None and part.thoughts.length:
                found.append(ReasoningPart(str(part.thoughts), is_native=True))
            found += self._content_of(part)
        return _with_lone_thought(found[0]) if len(found) == 1 else tuple(found)

    @property
    def tool_calls(self) -> tuple[AnsweredCall, ...]:
        """The tool calls in order. A call without arguments has an empty object."""
        return tuple(
            AnsweredCall(call.name, settled_arguments(self._arguments_of(call)), call.provider_id)
            for call in self._ordered_calls()
        )

    @property
    @abstractmethod
    def carried(self) -> str | None:
        """What else the provider put into its message, as the JSON text of `llm/wire.py`."""

    @property
    @abstractmethod
    def finish_reason(self) -> FinishReason:
        """The reason why the model stopped."""

    @property
    @abstractmethod
    def finish_word(self) -> str | None:
        """The provider's own word for that reason; None if it gave none."""

    @property
    @abstractmethod
    def usage(self) -> Usage:
        """The tokens that the provider counted. Missing counts are None."""

    @property
    @abstractmethod
    def body(self) -> Any:
        """The answer as a call without streaming would have returned it, for the trace."""

    @abstractmethod
    def _read(self, event: Any) -> None:
        """Reads an event. One that the API does not document is skipped, and noted in `_has_unknown`."""

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether the provider said why the model stopped."""

    @property
    def _may_be_empty(self) -> bool:
        """Whether an answer without any part and finish reason is one."""
        return False

    @abstractmethod
    def _content_of(self, part: Part) -> tuple[ContentPart, ...]:
        """Returns what is stored of a part."""

    def _ordered_calls(self) -> list[CallPart]:
        """Returns the calls in the order of their deltas. Pieces without a name and arguments are not calls.

        Some servers stream a call again, at another index. It is one call if its id, name and arguments are the same;
        at one index, a call without an id is.
        """
        last, known = len(self._calls), dict[tuple[object, ...], CallPart]()
        for call in self._calls:
            if call.name or call.arguments.length:
                is_streamed = call.provider_id is not None and call.provider_id in self._calls_by_id
                place = call.provider_id if is_streamed else call.index if call.provider_id is None else call
                key = (call,) if place is None else (place, call.name, str(call.arguments))
                known.setdefault(key, call)
        return sorted(known.values(), key=lambda call: last if call.ordinal is None else call.ordinal)

    def _arguments_of(self, call: CallPart) -> str:
        return str(call.arguments)

    def _open(self, kind: Kind, fields: dict[str, Any] | None = None) -> Part:
        """Opens a part other than a call."""
        return self._opened(Part(kind, fields or {}))

    def _add_text(self, part: Part, piece: str, key: Hashable = None) -> None:
        """Appends a piece to a text of a part. It is sent as a delta unless the part is opaque."""
        if not piece:
            return
        self._count(piece)
        part.has_begun = True
        if part.kind is Kind.TEXT and not self._tags.is_over and self._tagged in (None, part):
            self._tagged, self._tagged_key = part, key
            self._add_tagged(part, *self._tags.add(piece))
        else:
            self._append(part, piece, key)

    def _add_tagged(self, part: Part, thought: str, text: str) -> None:
        """Appends what a piece of the first text is: reasoning in tags, and text."""
        if self._tags.has_opened and part.thoughts is None:
            part.thoughts = Pieces()
        if thought and part.thoughts is not None:
            part.thoughts.add(thought)
            self._events.append(ReasoningDelta(thought))
        if text:
            self._append(part, text, self._tagged_key)

    def _append(self, part: Part, piece: str, key: Hashable) -> None:
        pieces = part.texts.get(key)
        if pieces is None:
            pieces = part.texts[key] = Pieces()
        pieces.add(piece)
        if part.kind is Kind.TEXT:
            self._events.append(TextDelta(piece))
        elif part.kind is Kind.REASONING:
            self._events.append(ReasoningDelta(piece))

    def _add_hidden(self, part: Part, piece: str, key: Hashable) -> None:
        """Appends a piece to a text of a part that is not shown, such as a signature."""
        self._count(piece)
        part.texts.setdefault(key, Pieces()).add(piece)

    def _add_call(
        self, index: Hashable, provider_id: str | None, name: str, arguments: str, *, name_is_whole: bool = False
    ) -> CallPart:
        """Adds a piece to the call that it belongs to, which may be a new one.

        Args:
            index: the place of the call in the answer; None if the provider does not say it.
            provider_id: the id, if the piece has it.
            name: the name or a part of it, if the piece has it.
            arguments: the next piece of the arguments.
            name_is_whole: no more of the name follows.
        """
        call = self._call_of(index, provider_id, name, arguments)
        if call is None:
            call = self._open_call(index)
        if provider_id and call.provider_id in (None, provider_id):
            call.provider_id = provider_id
            self._calls_by_id[provider_id] = self._calls_by_key[index, provider_id] = call
        if index is not None:
            call.index = index
            self._calls_by_key[index, None] = call
            if len(self._calls_by_key) > MAX_PARTS:
                raise self._refused(f"more than {MAX_PARTS:,} parts", MAX_PARTS)
        self._extend_name(call, name)
        self._extend_arguments(call, arguments, may_announce=name_is_whole)
        return call

    def _add_whole_call(self, index: Hashable, provider_id: str | None, name: str, arguments: str) -> CallPart:
        """Adds a call of an answer that was not streamed, where each call appears once."""
        call = self._open_call(index)
        call.provider_id = provider_id
        self._extend_name(call, name)
        self._extend_arguments(call, arguments, may_announce=True)
        return call

    def _refused(self, size: str, limit: int) -> ProviderBadAnswer:
        message = f"The model's answer has {size}; at most {limit:,} are accepted."
        return ProviderBadAnswer(message, provider=self._provider)

    def _call_of(self, index: Hashable, provider_id: str | None, name: str, arguments: str) -> CallPart | None:
        """Returns the call that a piece continues, or None if it begins another.

        Servers repeat or omit names, ids and indexes, and send them early or late. The same index without another id is
        the same call. Some servers give every piece of a call a new id, so another id begins no call while the
        arguments are incomplete, unless the name differs as well. A new name alone begins one behind complete ones.
        """
        if index is None:
            return self._unnumbered_call(provider_id, name, arguments)
        known = self._calls_by_key.get((index, provider_id)) if provider_id else None
        current = known or self._calls_by_key.get((index, None)) or self._unnumbered_before(provider_id, name)
        if current is None:
            return self._call_elsewhere(provider_id, name, arguments)
        is_another_id = bool(provider_id and current.provider_id and provider_id != current.provider_id)
        may_begin = name and not (name == current.name and current.arguments.length)
        if is_another_id and (may_begin or current.arguments.is_whole):
            return None
        is_begun = self._begins_another(current, name, arguments) and current.arguments.is_whole
        return None if is_begun and (name != current.name or _object_in(arguments) is not None) else current

    def _call_elsewhere(self, provider_id: str | None, name: str, arguments: str) -> CallPart | None:
        """Returns the call that a piece at a new index continues or repeats. Some servers reuse the ids of calls."""
        known = self._calls_by_id.get(provider_id) if provider_id else None
        if known is None or name not in ("", known.name):
            return None
        is_first = bool(arguments) and not known.arguments.length
        return known if not name or is_first or (arguments and known.arguments.equals(arguments)) else None

    def _unnumbered_call(self, provider_id: str | None, name: str, arguments: str) -> CallPart | None:
        """Returns the call that a piece without an index continues."""
        if provider_id and (known := self._calls_by_id.get(provider_id)) is not None:
            return None if self._begins_another(known, name, arguments) else known
        last = self._calls[-1] if self._calls else None
        if last is None or (provider_id and last.provider_id and name):
            return None
        if provider_id and last.provider_id and last.arguments.is_whole:
            return None
        return None if self._begins_another(last, name, arguments) else last

    def _unnumbered_before(self, provider_id: str | None, name: str) -> CallPart | None:
        """Returns the call without an index that a piece with the first index continues."""
        last = self._calls[-1] if self._calls else None
        if last is None or last.index is not None:
            return None
        is_same_id = not (provider_id and last.provider_id) or provider_id == last.provider_id
        return last if is_same_id and name in ("", last.name) and not last.arguments.is_whole else None

    @staticmethod
    def _begins_another(call: CallPart, name: str, arguments: str) -> bool:
        """Returns whether a piece with a name begins another call, as far as names and arguments say it.

        Nothing but another object may follow a whole one. An empty object stands before the arguments of some servers,
        and others repeat the arguments in another form.
        """
        if not (name and call.name and call.arguments.length):
            return False
        if name != call.name:
            return True
        is_more = call.arguments.is_whole and arguments.strip() not in ("", "{}")
        return is_more and not call.arguments.equals("{}") and not call.arguments.repeats(arguments)

    def _open_call(self, index: Hashable) -> CallPart:
        if len(self._calls) >= MAX_CALLS:
            raise self._refused(f"more than {MAX_CALLS:,} tool calls", MAX_CALLS)
        if self._calls:
            self._announce(self._calls[-1])
        call = CallPart(Kind.CALL, index=index)
        self._opened(call)
        self._calls.append(call)
        return call

    def _opened(self, part: Part) -> Part:
        if len(self._parts) >= MAX_PARTS:
            raise self._refused(f"more than {MAX_PARTS:,} parts", MAX_PARTS)
        self._parts.append(part)
        return part

    def _extend_name(self, call: CallPart, name: str) -> None:
        """Takes a name that is new, repeated, or longer than before, or the next part of a name."""
        if not name or name == call.name or (call.name and call.arguments.length):
            return
        self._count(name)
        call.name = name if name.startswith(call.name) else call.name + name

    def _extend_arguments(self, call: CallPart, arguments: str, *, may_announce: bool) -> None:
        arguments = call.arguments.unsaid(arguments)
        self._count(arguments)
        call.arguments.add(arguments)
        if call.ordinal is not None:
            if arguments:
                self._events.append(ToolCallDelta(call.ordinal, call.name, arguments))
        elif may_announce or call.arguments.length:
            self._announce(call)

    def _announce(self, call: CallPart) -> None:
        """Sends what is known of a call. Its name does not change after it."""
        if call.ordinal is None and call.name:
            call.ordinal = self._announced
            self._announced += 1
            self._events.append(ToolCallDelta(call.ordinal, call.name, str(call.arguments)))

    def _count(self, piece: str) -> None:
        """Counts a piece.

        Raises:
            ProviderBadAnswer: the answer is too long.
        """
        self._bytes += len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass"))
        if self._bytes > MAX_ANSWER_BYTES:
            raise self._refused(f"more than {MAX_ANSWER_BYTES:,} bytes", MAX_ANSWER_BYTES)

    def _take_events(self) -> list[LlmEvent]:
        events, self._events = self._events, []
        return events


def _with_lone_thought(part: ContentPart) -> tuple[ContentPart, ...]:
    """Returns the only part of an answer, with its reasoning apart if the opening tag is missing."""
    split = split_lone_closing(part.text) if isinstance(part, TextPart) else None
    if split is None or not isinstance(part, TextPart):
        return (part,)
    thought, text = split
    parts: tuple[ContentPart, ...] = (ReasoningPart(thought, is_native=True),) if thought else ()
    return (*parts, TextPart(text, part.signature)) if text else parts


def _object_in(text: str) -> dict[str, Any] | None:
    """Returns the object that a text is; None if it is something else."""
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def settled_arguments(text: str) -> str:
    """Returns the arguments of a call: an empty object for none, and those that were sent twice once.

    Some servers open a call with an empty object before its arguments, some repeat the arguments at the end, and some
    write null or an empty list for none. Other text is returned unchanged, also if it is not JSON.
    """
    given, source, end, length = list[Any](), "{}", 0, len(text.rstrip())
    try:
        for _ in range(_MAX_REPETITIONS):
            if end >= length:
                return source
            begin = end + len(_BLANK.match(text, end)[0])  # type: ignore[index]
            value, end = _DECODER.raw_decode(text, begin)
            if value not in (None, [], {}, *given):
                given.append(value)
                source = text[begin:end]
            if len(given) > 1:
                break
    except (ValueError, RecursionError):
        pass
    return text


def finish_reason_of(word: object) -> FinishReason:
    """Returns the reason for a provider's word. A word that is not known, or None, is STOP."""
    return _REASONS.get(_plain(word), FinishReason.STOP)


def is_interruption(word: object) -> bool:
    """Returns whether a provider's word means that it failed in the middle of its answer."""
    return _plain(word) in _INTERRUPTED


def _plain(word: object) -> str:
    """Returns the general part of a word, such as that of "content_filter: PROHIBITED_CONTENT"."""
    return str(word or "").lower().partition(":")[0].strip()


def objects_of(value: object) -> list[Mapping[str, Any]]:
    """Returns the objects in a list of a provider's JSON; none if it is not a list."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def object_of(value: object) -> Mapping[str, Any]:
    """Returns an object of a provider's JSON; an empty one if the value is not an object."""
    return value if isinstance(value, dict) else {}


def count_of(value: object) -> int | None:
    """Returns a number of a provider's JSON as a count; None if the value is not a finite number."""
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else None
