"""Anthropic's messages API."""

import json
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

from mnemesh_types.messages import ContentPart, OmittedReasoningPart, ReasoningPart, RedactedReasoningPart, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.assembly import CallPart, Kind, Part, StreamedAnswer, count_of, finish_reason_of
from mnemesh_orchestrator.llm.calls import SdkModel
from mnemesh_orchestrator.llm.history import (
    CLOSING,
    OPENING,
    PLAIN,
    HistoryForm,
    arguments_object,
    history_turns,
)
from mnemesh_orchestrator.llm.port import (
    FinishReason,
    LlmRequest,
    ToolChoiceKind,
)
from mnemesh_orchestrator.llm.schemas import response_schema, sendable_tool, strict_schema
from mnemesh_orchestrator.llm.settings import DIALECTS, Api
from mnemesh_orchestrator.llm.wire import (
    CALL,
    REASONING,
    TEXT,
    AssistantTurn,
    RenderCache,
    ReturnsTurn,
    SystemTurn,
    Turn,
    UserTurn,
    WireImage,
    WireReturn,
    carried_list,
    carried_order,
    decode_carried,
    encode_carried,
    hidden_image,
    image_base64,
    in_order,
    ordered_texts,
    other_fields,
    with_parameters,
    with_provider_options,
)
from mnemesh_orchestrator.model.models import ModelInfo, ToolSchema

Block = dict[str, Any]

DEFAULT_MAX_TOKENS: Final = 4096
_MIN_THINKING_TOKENS: Final = 1024
_PROTECTED: Final = frozenset({"messages", "stream", "tools", "system"})
_EPHEMERAL: Final = {"type": "ephemeral"}
# From 4.6 on a model chooses the length of its thinking. Older ones get a token budget.
_TAKES_BUDGET: Final = re.compile(r"claude-(?:3|(?:opus|sonnet|haiku)-4(?:-[0-5])?(?:-\d{8})?$)")
_THINKS: Final = re.compile(r"claude-(?:3-7|(?:opus|sonnet|haiku)-(?:[4-9]|\d\d))")

_KINDS: Final = {"text": Kind.TEXT, "thinking": Kind.REASONING, "tool_use": Kind.CALL}
_DELTAS: Final = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
}
"""The type of the block that a delta continues, and the field of the delta that has its piece."""
_THINKING: Final = frozenset({"thinking", "redacted_thinking"})
_STREAMED: Final = frozenset({"text", "thinking", "signature", "input"})
"""The fields of a block that arrive in pieces."""
_HELD: Final = frozenset({"type", "text", "thinking", "signature", "data", "id", "name", "input"})
"""The fields of a block that the stored message holds."""

__all__ = ["AnthropicMessagesClient", "render_body"]


def thinks(model: ModelInfo) -> bool:
    """Returns whether this is one of Claude's models that can think before they answer."""
    return model.api == Api.MESSAGES and _THINKS.match(model.provider_model) is not None


def render_body(
    request: LlmRequest,
    cache: RenderCache | None = None,
    form: HistoryForm = PLAIN,
    *,
    cache_breakpoints: bool = True,
) -> dict[str, Any]:
    """Returns the body that `stream` sends.

    Args:
        cache: the cache of rendered texts.
        cache_breakpoints: whether to mark the system block and the end of the window for the provider's prompt cache.

    Raises:
        ProviderOptionsInvalid: the agent's provider_options or response schema are not JSON.
    """
    cache = cache if cache is not None else RenderCache()
    history = history_turns(request, cache, form)
    thinking = _thinking(request, history, form)
    heads = (turn.text for turn in history if isinstance(turn, SystemTurn))
    system: list[Block] = [{"type": "text", "text": text} for text in heads if text.strip()]
    messages = _messages(history, thinking is not None, cache, form)
    if cache_breakpoints:
        for blocks in (system, messages[-1]["content"]):
            if blocks:
                blocks[-1] = {**blocks[-1], "cache_control": _EPHEMERAL}
    body: dict[str, Any] = {"model": request.model.provider_model, "max_tokens": _max_tokens(request, thinking)}
    if system:
        body["system"] = system
    body["messages"] = messages
    if request.tools:
        is_strict = bool(request.settings.strict_tool_schemas)
        body["tools"] = [
            cache.tool(tool, is_strict, lambda tool: _tool(sendable_tool(tool, DIALECTS["anthropic"]), is_strict))
            for tool in request.tools
        ]
        body["tool_choice"] = _tool_choice(request, is_forced=thinking is None)
    if thinking is not None:
        body["thinking"] = thinking
    else:
        sampling = {"temperature": request.settings.temperature, "top_p": request.settings.top_p}
        body.update({key: value for key, value in sampling.items() if value is not None})
    if output := _output_config(request):
        body["output_config"] = output
    body["stream"] = True
    # The API refuses top_k together with thinking.
    with_parameters(body, request.parameters, {"stop": "stop_sequences", **({} if thinking else {"top_k": "top_k"})})
    if isinstance(body.get("stop_sequences"), str):
        body["stop_sequences"] = [body["stop_sequences"]]
    return with_provider_options(body, request.settings.provider_options, _PROTECTED)


def _messages(
    history: Sequence[Turn], has_thinking: bool, cache: RenderCache, form: HistoryForm
) -> list[dict[str, Any]]:
    """Returns the turns with alternating roles. Neighbours with one role become one message."""
    messages: list[dict[str, Any]] = []
    for turn in history:
        match turn:
            case SystemTurn():
                continue
            case AssistantTurn():
                role, blocks = "assistant", _assistant(turn, has_thinking, form)
            case UserTurn():
                role, blocks = "user", _user(turn, cache)
            case ReturnsTurn():
                role, blocks = "user", [_tool_result(returned, cache) for returned in turn.returns]
        if not blocks:
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"].extend(blocks)
        else:
            messages.append({"role": role, "content": blocks})
    if not messages or messages[0]["role"] == "assistant":
        messages.insert(0, {"role": "user", "content": [{"type": "text", "text": OPENING}]})
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": [{"type": "text", "text": CLOSING}]})
    return messages


def _assistant(turn: AssistantTurn, has_thinking: bool, form: HistoryForm) -> list[Block]:
    """Returns the blocks of a message of the model, those of its provider in their own order."""
    order = carried_list(decode_carried(turn.message, Api.MESSAGES), "order") if turn.is_own else []
    texts = ordered_texts(order, turn.message.content)
    blocks: list[Block] = []
    for kind, part, fields in in_order(order, texts, _thoughts(turn), turn.calls):
        match kind:
            case "text" if part.text.strip():  # The API refuses a text without words.
                blocks.append({"type": "text", "text": part.text, **fields})
            case "reasoning" if has_thinking and part:
                blocks.append({**part, **fields})
            case "call":
                arguments = arguments_object(part.arguments)
                blocks.append({"type": "tool_use", "id": part.id, "name": part.name, "input": arguments, **fields})
            case None:
                blocks.append(dict(fields))
    if all(block["type"] in _THINKING for block in blocks):
        return []  # Some servers refuse a message of thinking alone.
    if has_thinking and form.reasoning is not None and not any(_thoughts(turn)):
        blocks.insert(0, {"type": "thinking", "thinking": form.reasoning, "signature": ""})
    return blocks


def _thoughts(turn: AssistantTurn) -> list[Block]:
    """Returns the thinking of a message in its order. A block that the provider cannot verify as its own is empty."""
    parts = turn.message.content if turn.is_own else ()
    return [block for part in parts if (block := _thought(part)) is not None]


def _thought(part: ContentPart) -> Block | None:
    match part:
        case ReasoningPart(text, True, signature):
            return {"type": "thinking", "thinking": text, "signature": signature} if signature else {}
        case OmittedReasoningPart(signature):
            return {"type": "thinking", "thinking": "", "signature": signature} if signature else {}
        case RedactedReasoningPart(data):
            return {"type": "redacted_thinking", "data": data}
    return None


def _user(turn: UserTurn, cache: RenderCache) -> list[Block]:
    blocks: list[Block] = [{"type": "text", "text": turn.text}] if turn.text.strip() else []
    return blocks + [_image(image, cache) for image in turn.images]


def _image(image: WireImage, cache: RenderCache) -> Block:
    part = image.part
    if part.data is not None:
        media_type = part.media_type or "image/png"
        source = {"type": "base64", "media_type": media_type, "data": image_base64(image, cache)}
        return {"type": "image", "source": source}
    if part.url is not None:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    return {"type": "text", "text": hidden_image(image)}


def _tool_result(returned: WireReturn, cache: RenderCache) -> Block:
    content: str | list[Block] = returned.text
    if returned.images:
        content = [{"type": "text", "text": returned.text}, *(_image(image, cache) for image in returned.images)]
    block: Block = {"type": "tool_result", "tool_use_id": returned.call_id, "content": content}
    return {**block, "is_error": True} if returned.is_error else block


def _tool(tool: ToolSchema, is_strict: bool) -> Block:
    strict = strict_schema(tool.parameters) if is_strict else None
    schema = tool.parameters if strict is None else strict
    block: Block = {"name": tool.name, "description": tool.description, "input_schema": schema}
    return block if strict is None else {**block, "strict": True}


def _tool_choice(request: LlmRequest, *, is_forced: bool) -> Block:
    choice = request.tool_choice
    # The API refuses a forced choice together with thinking, so the model may choose.
    if not is_forced or choice.kind is ToolChoiceKind.AUTO:
        kind: Block = {"type": "auto"}
    elif choice.kind is ToolChoiceKind.NAMED:
        kind = {"type": "tool", "name": choice.name}
    else:
        kind = {"type": "any"}
    return {**kind, "disable_parallel_tool_use": not request.parallel_tool_calls}


def _thinking(request: LlmRequest, history: Sequence[Turn], form: HistoryForm) -> Block | None:
    is_bare = form.reasoning is None and _is_bare_tool_loop(history)
    if not request.settings.enable_reasoner or request.inner_thoughts or is_bare:
        return None
    if not _TAKES_BUDGET.match(request.model.provider_model):
        return {"type": "adaptive"}
    budget = max(_MIN_THINKING_TOKENS, request.settings.max_reasoning_tokens or 0)
    return {"type": "enabled", "budget_tokens": budget}


def _is_bare_tool_loop(history: Sequence[Turn]) -> bool:
    """Returns whether the last call has no thinking, because another model made it.

    Thinking must be off to continue.
    """
    last = next((turn for turn in reversed(history) if isinstance(turn, AssistantTurn)), None)
    return last is not None and bool(last.calls) and not any(_thoughts(last))


def _max_tokens(request: LlmRequest, thinking: Block | None) -> int:
    defaults = request.model.defaults
    tokens = request.settings.max_output_tokens or defaults.max_output_tokens or DEFAULT_MAX_TOKENS
    budget = int(thinking.get("budget_tokens", 0)) if thinking else 0
    return tokens if tokens > budget else budget + DEFAULT_MAX_TOKENS


def _output_config(request: LlmRequest) -> Block:
    config: Block = {}
    if request.settings.reasoning_effort in ("low", "medium", "high", "xhigh", "max"):
        config["effort"] = request.settings.reasoning_effort
    if request.response_format.kind == "json_schema":
        config["format"] = {"type": "json_schema", "schema": response_schema(request.response_format)}
    return config


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
        """The order of the blocks, and those that are not a text, thinking or a call."""
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
        uncached, completion = count_of(self._usage.get("input_tokens")), count_of(self._usage.get("output_tokens"))
        read = count_of(self._usage.get("cache_read_input_tokens"))
        written = count_of(self._usage.get("cache_creation_input_tokens"))
        prompt = None if uncached is None else uncached + (read or 0) + (written or 0)
        details = self._usage.get("output_tokens_details")
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=None if prompt is None or completion is None else prompt + completion,
            cached_input_tokens=read,
            cache_write_tokens=written,
            reasoning_tokens=count_of(details.get("thinking_tokens")) if isinstance(details, Mapping) else None,
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
            # Some servers end with zeros instead of the counts that they began with.
            self._usage.update({key: value for key, value in usage.items() if value or key not in self._usage})

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


class AnthropicMessagesClient(SdkModel):
    """A client of the Messages API."""

    sdk = "anthropic"
    api_path = "/v1/messages"

    def _body(self, request: LlmRequest, cache: RenderCache, form: HistoryForm) -> dict[str, Any]:
        return render_body(request, cache, form)

    def _answer(self, provider: str) -> StreamedAnswer:
        return MessagesAnswer(provider)

    def _open(self, sdk: Any, headers: dict[str, str], **options: Any) -> Any:
        if options["base_url"] != DIALECTS["anthropic"].base_url:
            # The SDK sends a bearer token. Servers with an older form of the API know only this header.
            headers.setdefault("x-api-key", options["api_key"])
        return sdk.AsyncAnthropic(default_headers=headers or None, **options)
