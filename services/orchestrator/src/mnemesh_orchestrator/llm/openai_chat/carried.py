"""The parts of a message of chat completions that return to its model: reasoning fields, and fields unknown to us."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mnemesh_orchestrator.llm.carried import MergedFields, encode_carried
from mnemesh_orchestrator.llm.dialects import Api

REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
"""The fields in which servers send the text of their reasoning."""
# The stored message has the others. A refusal is part of its text.
_HELD: Final = frozenset({*REASONING_FIELDS, "role", "content", "refusal", "tool_calls", "function_call"})
_HELD_OF_CALL: Final = frozenset({"id", "type", "index", "function"})
_HELD_OF_FUNCTION: Final = frozenset({"name", "arguments"})


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
