"""Assembles an Anthropic answer from its events, or from one plain message."""

import json
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final

from mnemesh_types.messages import ContentPart, OmittedReasoningPart, ReasoningPart, RedactedReasoningPart, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.assembly import CallPart, Kind, Part, StreamedAnswer
from mnemesh_orchestrator.llm.block_order import CALL, REASONING, TEXT, carried_order, other_fields
from mnemesh_orchestrator.llm.carried import encode_carried
from mnemesh_orchestrator.llm.dialects import Api
from mnemesh_orchestrator.llm.finish_reasons import finish_reason_of
from mnemesh_orchestrator.llm.port import FinishReason

_KINDS: Final = {"text": Kind.TEXT, "thinking": Kind.REASONING, "tool_use": Kind.CALL}
_DELTAS: Final = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
}
"""The type of the block that a delta continues, and the field of the delta that has its piece."""
_STREAMED: Final = frozenset({"text", "thinking", "signature", "input"})
"""The fields of a block that arrive in pieces."""


_HELD: Final = frozenset({"type", "text", "thinking", "signature", "data", "id", "name", "input"})
"""The fields of a block that the stored message holds."""


class MessagesAnswer(StreamedAnswer):
    """A message in progress."""

    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self._blocks: dict[int, Part] = {}
        self._openings: dict[Part, str] = {}
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._stop_reason: str | None = None

    @property
    def carried(self) -> str | None:
        """The order of the blocks, and those that are no text, thinking or call."""
        return encode_carried(Api.MESSAGES, {"order": carried_order(self._ordered())})

    @property
    def finish_reason(self) -> FinishReason:
        """The reason why the model stopped."""
        if self._stop_reason is None and self._calls:
            return FinishReason.TOOL_CALLS
        return finish_reason_of(self._stop_reason)

    @property
    def finish_word(self) -> str | None:
        """The stop reason as the server sent it."""
        return None if self._stop_reason is None else str(self._stop_reason)

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
        blocks = [_block(part) for part in self._parts]
        return {**self._head, "content": blocks, "stop_reason": self._stop_reason, "usage": self._usage}

    def _read(self, event: Any) -> None:
        match event:
            case {"type": "message_start", "message": Mapping() as head}:
                self._start(head)
            case {"type": "content_block_start", "index": int(index), "content_block": Mapping() as block}:
                self._open_block(index, block)
            case {"type": "content_block_delta", "index": int(index), "delta": Mapping() as delta}:
                self._extend(index, delta)
            case {"type": "content_block_stop", "index": int(index)}:
                if index in self._blocks:
                    self._blocks[index].is_closed = True
            case {"type": "message_delta", "delta": Mapping() as delta}:
                self._stop_reason = delta.get("stop_reason") or self._stop_reason
                self._take_usage(event.get("usage"))
            case {"type": "message", "content": list(blocks)}:
                self._start(event)
                self._stop_reason = event.get("stop_reason") or "end_turn"
                for index, block in enumerate(blocks):
                    if isinstance(block, Mapping):
                        self._open_block(index, block)
            case {"type": "message_stop"}:
                self._has_ended = True
            case {"type": str()}:
                pass  # ping, and future events of the API.
            case _:
                self._has_unknown = True

    @property
    def is_finished(self) -> bool:
        """Whether the provider said why the model stopped."""
        return self._stop_reason is not None

    def _start(self, head: Mapping[str, Any]) -> None:
        self._head = {key: head[key] for key in ("id", "type", "role", "model") if key in head}
        self._take_usage(head.get("usage"))

    def _take_usage(self, usage: object) -> None:
        if isinstance(usage, Mapping):
            self._usage.update({key: value for key, value in usage.items() if value is not None})

    def _open_block(self, index: int, block: Mapping[str, Any]) -> None:
        """Opens a block, unless its start is repeated. Some servers number all blocks alike."""
        kind, known = _KINDS.get(str(block.get("type")), Kind.OPAQUE), self._blocks.get(index)
        fields = {key: value for key, value in block.items() if kind is Kind.OPAQUE or key not in _STREAMED}
        if kind is Kind.CALL:
            given = block.get("input")
            arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False) if given else ""
            name, id_ = str(block.get("name") or ""), str(block.get("id") or "") or None
            place: Hashable = (index, len(self._parts))
            if isinstance(known, CallPart) and (not known.is_closed or (id_ and id_ == known.provider_id)):
                place = known.index
            call = self._add_call(place, id_, name, arguments, name_is_whole=True)
            call.fields = fields
            self._blocks[index] = call
        elif known is None or known.is_closed or known.fields.get("type") != block.get("type"):
            self._blocks[index] = part = self._open(kind, fields)
            for key, hidden in (("text", False), ("thinking", False), ("signature", True)):
                if isinstance(piece := block.get(key), str) and piece and kind is not Kind.OPAQUE:
                    self._add_hidden(part, piece, key) if hidden else self._add_text(part, piece)
                    self._openings[part] = piece

    def _extend(self, index: int, delta: Mapping[str, Any]) -> None:
        kind, part = str(delta.get("type")), self._blocks.get(index)
        if kind == "citations_delta" and part is not None:
            self._add_citation(part, delta.get("citation"))
        if kind not in _DELTAS:
            return
        block_type, key = _DELTAS[kind]
        piece = delta.get(key)
        if not isinstance(piece, str):
            return
        if part is not None and part.kind is Kind.OPAQUE and key == "partial_json":
            self._add_hidden(part, piece, "input")  # The provider's own tools have an input, too.
            return
        if part is None or part.kind is not _KINDS[block_type]:
            self._open_block(index, {"type": block_type})
            part = self._blocks[index]
        if isinstance(part, CallPart):
            self._add_call(part.index, None, "", piece, name_is_whole=True)
        elif self._openings.pop(part, None) == piece:
            pass  # Some servers repeat the text of a block's start in its first delta.
        elif key == "signature":
            self._add_hidden(part, piece, key)
        else:
            self._add_text(part, piece)

    def _add_citation(self, part: Part, citation: object) -> None:
        self._count(str(citation))
        if not isinstance(known := part.fields.get("citations"), list):
            known = part.fields["citations"] = []
        known.append(citation)

    def _ordered(self) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
        for part in self._parts:
            block = _block(part)
            if isinstance(part, CallPart):
                if part in self._ordered_calls():
                    yield CALL, other_fields(block, _HELD)
            elif part.kind is Kind.OPAQUE and block.get("type") != "redacted_thinking":
                yield None, block
            elif part.kind is not Kind.TEXT:
                yield REASONING, other_fields(block, _HELD)
            elif part.text:
                yield TEXT, other_fields(block, _HELD)

    def _content_of(self, part: Part) -> tuple[ContentPart, ...]:
        signature = str(part.texts.get("signature", "")) or None
        match part.kind:
            case Kind.TEXT:
                return (TextPart(part.text),) if part.text else ()
            case Kind.REASONING if part.text:
                return (ReasoningPart(part.text, is_native=True, signature=signature),)
            case Kind.REASONING:
                return (OmittedReasoningPart(signature),)
        match part.fields:
            case {"type": "redacted_thinking", "data": str(data)}:
                return (RedactedReasoningPart(data),)
        return ()


def _block(part: Part) -> dict[str, Any]:
    """Returns a block in the form of a message that is not streamed."""
    if isinstance(part, CallPart):
        head = {"type": "tool_use", "id": part.provider_id, "name": part.name}
        return {**part.fields, **head, "input": _decoded(str(part.arguments))}
    names = {Kind.TEXT: "text", Kind.REASONING: "thinking"}
    text = {names[part.kind]: part.wire_text} if part.kind in names else {}
    signature = {"signature": str(part.texts["signature"])} if "signature" in part.texts else {}
    given = {"input": _decoded(str(part.texts["input"]))} if "input" in part.texts else {}
    return {**part.fields, **text, **signature, **given}


def _decoded(text: str) -> object:
    try:
        return json.loads(text) if text.strip() else {}
    except ValueError:
        return text


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None
