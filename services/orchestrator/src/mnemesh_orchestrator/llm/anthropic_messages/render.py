"""Renders a request as the body of an Anthropic messages call. Pure, with a stable order of keys."""

import re
from collections.abc import Sequence
from typing import Any, Final

from mnemesh_types.messages import ContentPart, OmittedReasoningPart, ReasoningPart, RedactedReasoningPart

from mnemesh_orchestrator.llm.block_order import in_order, ordered_texts
from mnemesh_orchestrator.llm.carried import carried_list, decode_carried
from mnemesh_orchestrator.llm.dialects import DIALECTS, Api
from mnemesh_orchestrator.llm.history import (
    CLOSING,
    OPENING,
    arguments_object,
    history_turns,
)
from mnemesh_orchestrator.llm.history_forms import PLAIN, HistoryForm
from mnemesh_orchestrator.llm.port import LlmRequest, ToolChoiceKind
from mnemesh_orchestrator.llm.render_cache import RenderCache
from mnemesh_orchestrator.llm.schemas import response_schema, strict_schema
from mnemesh_orchestrator.llm.tool_schemas import sendable_tool
from mnemesh_orchestrator.llm.turns import (
    AssistantTurn,
    ReturnsTurn,
    SystemTurn,
    Turn,
    UserTurn,
    WireImage,
    WireReturn,
)
from mnemesh_orchestrator.llm.wire import hidden_image, image_base64, with_parameters, with_provider_options
from mnemesh_orchestrator.model.models import ModelInfo, ToolSchema

Block = dict[str, Any]

DEFAULT_MAX_TOKENS: Final = 4096
_MIN_THINKING_TOKENS: Final = 1024
_PROTECTED: Final = frozenset({"messages", "stream", "tools", "system"})
_EPHEMERAL: Final = {"type": "ephemeral"}
# From 4.6 on a model chooses the length of its thinking. Older ones get a token budget.
_TAKES_BUDGET: Final = re.compile(r"claude-(?:3|(?:opus|sonnet|haiku)-4(?:-[0-5])?(?:-\d{8})?$)")
_THINKS: Final = re.compile(r"claude-(?:3-7|(?:opus|sonnet|haiku)-(?:[4-9]|\d\d))")


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
        request: the request.
        cache: the cache of rendered texts.
        form: the form of the history.
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
        body["tools"] = [_tool(sendable_tool(tool, DIALECTS["anthropic"]), is_strict) for tool in request.tools]
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
