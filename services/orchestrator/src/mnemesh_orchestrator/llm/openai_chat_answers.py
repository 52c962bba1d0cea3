"""Assembles an OpenAI answer from chunks, or from one plain body, tolerating deviations of servers."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mnemesh_types.messages import ContentPart, ReasoningPart, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.assembly import (
    CallPart,
    Kind,
    Part,
    StreamedAnswer,
    count_of,
    finish_reason_of,
    is_interruption,
    object_of,
    objects_of,
)
from mnemesh_orchestrator.llm.carried import MergedFields, encode_carried
from mnemesh_orchestrator.llm.dialects import Api
from mnemesh_orchestrator.llm.errors import ProviderUnavailable
from mnemesh_orchestrator.llm.port import FinishReason, LlmEvent
from mnemesh_orchestrator.llm.provider_errors import error_from_response

REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
"""The fields in which servers send the text of their reasoning."""
# The stored message has the others. A refusal is part of its text.
_HELD: Final = frozenset({*REASONING_FIELDS, "role", "content", "refusal", "tool_calls", "function_call"})
_HELD_OF_CALL: Final = frozenset({"id", "type", "index", "function"})
_HELD_OF_FUNCTION: Final = frozenset({"name", "arguments"})

_FIELDS = frozenset({"choices", "usage", "id", "object"})
"""The fields of which a completion has one at least."""
_THOUGHTS = frozenset({"thinking", "reasoning"})
"""The types of content parts that are reasoning."""


class ChatCarried:
    """The carried parts of a message in progress."""

    def __init__(self) -> None:
        self._reasoning: dict[str, None] = {}
        self._fields = MergedFields()
        self._content = MergedFields()
        self._whole: dict[str, Any] = {}

    def add(self, message: Mapping[str, Any], *, is_whole: bool) -> None:
        """Adds the delta of a message, or the whole message of an answer that is not streamed."""
        # DeepSeek requires a field that it sent, though it was empty.
        self._reasoning |= {name: None for name in REASONING_FIELDS if isinstance(message.get(name), str)}
        fields = {name: value for name, value in message.items() if name not in _HELD}
        if is_whole:
            self._whole = {name: value for name, value in fields.items() if value}
        elif fields:
            self._fields.add(fields)
        self._add_content(message.get("content"))

    def encoded(self, calls: Sequence[Mapping[str, Any]]) -> str | None:
        """Returns the carried parts as text for the message, with the other fields of its calls, in their order."""
        content = self._content.value.get("content")
        if content and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            content = None
        fields = {**self._fields.value, **self._whole, **({"content": content} if content else {})}
        return encode_carried(
            Api.CHAT,
            {"reasoning": list(self._reasoning), "fields": fields, "calls": list(calls) if any(calls) else []},
        )

    def _add_content(self, content: object) -> None:
        """Adds content in typed parts, such as Mistral's thinking. Text that follows them is one of the parts."""
        if isinstance(content, list):
            self._content.add({"content": content})
        elif isinstance(content, str) and content and self._content.has_fields:
            self._content.add({"content": [{"type": "text", "text": content}]})


def call_fields(piece: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a call that the stored call does not hold, such as Gemini's signature of thoughts."""
    fields = {name: value for name, value in piece.items() if name not in _HELD_OF_CALL}
    function = piece.get("function")
    if isinstance(function, Mapping):
        others = {name: value for name, value in function.items() if name not in _HELD_OF_FUNCTION}
        if others:
            fields["function"] = others
    return fields


class ChatAnswer(StreamedAnswer):
    """A chat completion in progress."""

    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self._finish: str | None = None
        self._choice = 0
        self._has_choices = False
        self._has_chunks = False
        self._has_deltas = False
        self._is_legacy: bool | None = None
        self._id: object = None
        self._model: object = None
        self._usage: Mapping[str, Any] | None = None
        self._carried = ChatCarried()
        self._others: defaultdict[CallPart, MergedFields] = defaultdict(MergedFields)

    def end(self, *, is_done: bool) -> list[LlmEvent]:
        """Ends the answer; see the base class."""
        if is_interruption(self._finish):
            raise ProviderUnavailable(f"{self._provider} ended in the middle of its answer.", provider=self._provider)
        return super().end(is_done=is_done)

    @property
    def carried(self) -> str | None:
        """The other parts of the provider's message, for its next request."""
        return self._carried.encoded([self._others[call].value for call in self._ordered_calls()])

    @property
    def finish_reason(self) -> FinishReason:
        """The reason why the model stopped. Servers report "stop" for forced calls too, so calls take precedence."""
        finish = finish_reason_of(self._finish)
        return FinishReason.TOOL_CALLS if finish is FinishReason.STOP and self._calls else finish

    @property
    def finish_word(self) -> str | None:
        """The finish reason as the server sent it."""
        return self._finish

    @property
    def usage(self) -> Usage:
        """The token counts of the provider. Missing counts stay None."""
        usage = self._usage or {}
        prompt, completion = (
            object_of(usage.get("prompt_tokens_details")),
            object_of(usage.get("completion_tokens_details")),
        )
        cached = prompt.get("cached_tokens")
        return Usage(
            prompt_tokens=count_of(usage.get("prompt_tokens")),
            completion_tokens=count_of(usage.get("completion_tokens")),
            total_tokens=count_of(usage.get("total_tokens")),
            cached_input_tokens=count_of(usage.get("prompt_cache_hit_tokens") if cached is None else cached),
            cache_write_tokens=count_of(prompt.get("cache_write_tokens")),
            reasoning_tokens=count_of(completion.get("reasoning_tokens")),
        )

    @property
    def body(self) -> dict[str, Any]:
        """The answer as a call without streaming would have returned it, for the trace."""
        texts = {
            kind: "".join(part.wire_text for part in self._parts if part.kind is kind)
            for kind in (Kind.TEXT, Kind.REASONING)
            if any(part.kind is kind for part in self._parts)
        }
        message: dict[str, Any] = {"role": "assistant", "content": texts.get(Kind.TEXT)}
        if Kind.REASONING in texts:
            message["reasoning_content"] = texts[Kind.REASONING]
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": call.provider_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": str(call.arguments)},
                }
                for call in self._calls
            ]
        choices = [{"index": 0, "message": message, "finish_reason": self._finish}] if self._has_choices else []
        return {"id": self._id, "model": self._model, "choices": choices, "usage": self._usage}

    def _read(self, event: Any) -> None:
        if not isinstance(event, dict) or _FIELDS.isdisjoint(event):
            self._has_unknown = True
            return
        self._has_chunks = True
        self._id = self._id or event.get("id")
        self._model = self._model or event.get("model")
        choice = self._only_choice(objects_of(event.get("choices")))
        # Groq and Moonshot have places of their own for usage.
        for place in (event, choice or {}, object_of(event.get("x_groq"))):
            if isinstance(usage := place.get("usage"), dict):
                self._usage = usage
                break
        if choice is not None:
            self._read_choice(choice)

    def _only_choice(self, choices: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """Returns the piece of the one choice that is read, if a server sends several: the first."""
        for choice in sorted(choices, key=lambda row: _index(row) or 0) if len(choices) > 1 else choices:
            if not self._has_choices:
                self._has_choices, self._choice = True, _index(choice) or 0
            if (_index(choice) or 0) == self._choice:
                return choice
        return None

    def _read_choice(self, choice: Mapping[str, Any]) -> None:
        if error := choice.get("error"):
            raise error_from_response(self._provider, None, {"error": error})
        delta = object_of(choice.get("delta"))
        is_whole = not delta and isinstance(choice.get("message"), dict)
        message = object_of(choice.get("message")) if is_whole else delta
        if is_whole and self._has_deltas:
            message = self._missing(message)  # Some servers repeat the whole message behind its pieces.
        self._has_deltas = self._has_deltas or bool(delta)
        self._carried.add(message, is_whole=is_whole)
        self._read_text(message)
        self._read_calls(message, is_whole=is_whole)
        finish = choice.get("finish_reason")
        if not isinstance(finish, str) or finish.lower() in ("null", "none"):  # Some servers write null as a text.
            finish = None
        self._finish = finish or self._finish or ("stop" if is_whole else None)

    def _missing(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the fields of a whole message whose pieces have not arrived."""
        kinds = {part.kind for part in self._parts}
        known = {"content", "refusal"} if Kind.TEXT in kinds else set[str]()
        known |= set(REASONING_FIELDS) if Kind.REASONING in kinds else set()
        known |= {"tool_calls", "function_call"} if Kind.CALL in kinds else set()
        return {name: value for name, value in message.items() if name not in known}

    def _read_text(self, message: Mapping[str, Any]) -> None:
        self._say(Kind.REASONING, _text(message.get("reasoning_content")) or _text(message.get("reasoning")))
        content = message.get("content")
        if isinstance(content, list):
            for part in objects_of(content):
                is_thought = part.get("type") in _THOUGHTS
                text = part.get("thinking") if is_thought else part.get("text")
                self._say(Kind.REASONING if is_thought else Kind.TEXT, _text(text) or _text(part.get("text")))
        else:
            self._say(Kind.TEXT, _text(content))
        self._say(Kind.TEXT, _text(message.get("refusal")))  # A refusal is text of the model, which the user reads.

    def _say(self, kind: Kind, piece: str) -> None:
        if piece:
            is_same = bool(self._parts) and self._parts[-1].kind is kind
            self._add_text(self._parts[-1] if is_same else self._open(kind), piece)

    def _read_calls(self, message: Mapping[str, Any], *, is_whole: bool) -> None:
        given, legacy = message.get("tool_calls"), message.get("function_call")
        pieces = objects_of([given] if isinstance(given, dict) else given)
        if not pieces and isinstance(legacy, dict):
            pieces = [{"index": 0, "function": legacy}]
            is_legacy = True
        else:
            is_legacy = False
        if pieces and self._is_legacy is None:
            self._is_legacy = is_legacy
        if is_legacy != self._is_legacy:
            return  # Some servers send a call in both forms.
        for position, piece in enumerate(pieces):
            function = object_of(piece.get("function")) or piece  # Some servers send the fields of the function bare.
            # Pieces without an index are told apart by their places if there are several.
            index = _index(piece)
            place = ("place", position) if index is None and len(pieces) > 1 else index
            fields = _id(piece), _name(function), _arguments(function.get("arguments"))
            call = self._add_whole_call(place, *fields) if is_whole else self._add_call(place, *fields)
            if others := call_fields(piece):
                self._others[call].add(others)

    @property
    def is_finished(self) -> bool:
        """Whether the provider said why the model stopped."""
        return self._finish is not None

    @property
    def _may_be_empty(self) -> bool:
        return self._has_chunks and not self._has_choices

    def _content_of(self, part: Part) -> tuple[ContentPart, ...]:
        match part.kind:
            case Kind.TEXT:
                return (TextPart(part.text),) if part.text else ()
            case Kind.REASONING:
                return (ReasoningPart(part.text, is_native=True),)
            case _:
                return ()


def _id(piece: Mapping[str, Any]) -> str | None:
    given = piece.get("id")
    return str(given) if given not in (None, "") else None


def _name(function: Mapping[str, Any]) -> str:
    name = function.get("name")
    return name if isinstance(name, str) else ""


def _arguments(value: object) -> str:
    """Returns the arguments as text. Some servers send an object, or an empty list for none."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value or {}, ensure_ascii=False)


def _index(row: Mapping[str, Any]) -> int | None:
    index = row.get("index")
    if isinstance(index, str) and index.isdecimal():
        return int(index)
    return index if isinstance(index, int) and not isinstance(index, bool) else None


def _text(value: object) -> str:
    """Returns text, either plain or joined from typed parts."""
    if isinstance(value, str):
        return value
    return "".join(text for part in objects_of(value) if isinstance(text := part.get("text"), str)) if value else ""
