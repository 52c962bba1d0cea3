"""Renders a request as the body of an OpenAI chat completion. Pure, with a stable order of keys."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from mnemesh_types.messages import ReasoningPart

from mnemesh_orchestrator.llm.carried import carried_list, decode_carried
from mnemesh_orchestrator.llm.dialects import Api, Dialect, dialect_of
from mnemesh_orchestrator.llm.history import (
    BRIDGE,
    CLOSING,
    history_turns,
)
from mnemesh_orchestrator.llm.openai_chat.carried import REASONING_FIELDS
from mnemesh_orchestrator.llm.port import LlmRequest, ToolChoiceKind
from mnemesh_orchestrator.llm.render_cache import RenderCache
from mnemesh_orchestrator.llm.schemas import response_schema, strict_schema
from mnemesh_orchestrator.llm.turns import (
    AssistantTurn,
    ReturnsTurn,
    SystemTurn,
    Turn,
    UserTurn,
    WireImage,
)
from mnemesh_orchestrator.llm.wire import hidden_image, image_url, with_provider_options
from mnemesh_orchestrator.model.models import ModelInfo, ResponseFormat, ToolSchema

# The loop depends on these fields, so no provider option may change them.
_PROTECTED = frozenset({"messages", "stream", "tools"})
_REASONS = re.compile(r"^(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*chat))")
_REFUSES_PARALLEL_FLAG = re.compile(r"^o\d")
_OFFICIAL: Final = frozenset({"openai", "azure"})
_RETURNED_IMAGES: Final = "[Images that the tool call {call} returned:]"
# No carried field replaces one that is rendered.
_HELD: Final = frozenset({"role", "tool_calls", *REASONING_FIELDS})
# Gemini documents this value for calls that it did not make.
_NO_SIGNATURE: Final = "skip_thought_signature_validator"


def render_body(request: LlmRequest, cache: RenderCache | None = None) -> dict[str, Any]:
    """Returns the body that `stream` sends, in the dialect of the model's vendor.

    Raises:
        ProviderOptionsInvalid: the agent's provider_options or response schema are not JSON.
    """
    cache = cache if cache is not None else RenderCache()
    dialect = dialect_of(request.model)
    body: dict[str, Any] = {"model": request.model.provider_model}
    body["messages"] = list(_messages(history_turns(request, cache), cache, dialect))
    if request.tools:
        is_strict = bool(request.settings.strict_tool_schemas) and dialect.strict_tools
        body["tools"] = [_tool(tool, is_strict) for tool in request.tools]
        body["tool_choice"] = _tool_choice(request, dialect)
        if dialect.parallel_flag and not _refuses_parallel_flag(request.model):
            body["parallel_tool_calls"] = request.parallel_tool_calls
    if request.response_format.kind != "text":
        body["response_format"] = _response_format(request.response_format, dialect)
    body.update(_sampling(request, dialect))
    body["stream"] = True
    if dialect.stream_usage:
        body["stream_options"] = {"include_usage": True}
    return with_provider_options(body, request.settings.provider_options, _PROTECTED)


def reasons(model: ModelInfo) -> bool:
    """Returns whether this is one of OpenAI's reasoning models, which refuse a temperature."""
    return dialect_of(model).type in _OFFICIAL and _REASONS.match(model.provider_model) is not None


def _refuses_parallel_flag(model: ModelInfo) -> bool:
    return dialect_of(model).type in _OFFICIAL and _REFUSES_PARALLEL_FLAG.match(model.provider_model) is not None


def _sampling(request: LlmRequest, dialect: Dialect) -> dict[str, Any]:
    settings, is_reasoning = request.settings, reasons(request.model)
    takes_effort = is_reasoning or dialect.type not in _OFFICIAL
    sampling: dict[str, Any] = {
        dialect.limit.value: settings.max_output_tokens,
        # OpenAI's reasoning models refuse both, and its other models refuse an effort.
        "temperature": None if is_reasoning else settings.temperature,
        "top_p": None if is_reasoning else settings.top_p,
        "reasoning_effort": settings.reasoning_effort if takes_effort else None,
    }
    if dialect.thinking_switch and settings.enable_reasoner is not None:
        sampling["thinking"] = {"type": "enabled" if settings.enable_reasoner else "disabled"}
    return {key: value for key, value in sampling.items() if value is not None}


def _messages(history: Sequence[Turn], cache: RenderCache, dialect: Dialect) -> Iterator[dict[str, Any]]:
    """Returns the turns in the order that the vendor requires."""
    previous_role = ""
    for turn in history:
        for message in _turn_messages(turn, cache, dialect):
            if previous_role == "tool" and message["role"] == "user" and not dialect.user_after_tool:
                yield {"role": "assistant", "content": BRIDGE}
            previous_role = message["role"]
            yield message
    if previous_role == "assistant" and not dialect.assistant_last:
        yield {"role": "user", "content": CLOSING}


def _turn_messages(turn: Turn, cache: RenderCache, dialect: Dialect) -> list[dict[str, Any]]:
    if isinstance(turn, SystemTurn):
        return [{"role": "system", "content": turn.text}]
    messages = turn.rendered.get(dialect.type)
    if messages is None:
        messages = _rendered(turn, cache, dialect)
        if not _has_images(turn):  # The cache bounds the memory of images.
            turn.rendered[dialect.type] = messages
    return messages


def _rendered(
    turn: UserTurn | AssistantTurn | ReturnsTurn, cache: RenderCache, dialect: Dialect
) -> list[dict[str, Any]]:
    match turn:
        case UserTurn():
            return [{"role": "user", "content": _user_content(turn, cache)}]
        case AssistantTurn():
            return [_assistant(turn, dialect)]
        case ReturnsTurn():
            return list(_returns(turn, cache))


def _has_images(turn: UserTurn | AssistantTurn | ReturnsTurn) -> bool:
    match turn:
        case UserTurn():
            return bool(turn.images)
        case AssistantTurn():
            return False
        case ReturnsTurn():
            return any(returned.images for returned in turn.returns)


def _assistant(turn: AssistantTurn, dialect: Dialect) -> dict[str, Any]:
    carried = decode_carried(turn.message, Api.CHAT) if turn.is_own else {}
    message: dict[str, Any] = {"role": "assistant", "content": turn.message.text or (None if turn.calls else "")}
    names = [name for name in carried_list(carried, "reasoning") if name in REASONING_FIELDS]
    if not names and dialect.returns_reasoning:
        names = [REASONING_FIELDS[0]]
    message.update(dict.fromkeys(names, _reasoning(turn)))
    if isinstance(fields := carried.get("fields"), dict):
        message.update({name: value for name, value in fields.items() if name not in _HELD})
    if turn.calls:
        message["tool_calls"] = list(_calls(turn, carried_list(carried, "calls"), dialect))
    return message


def _reasoning(turn: AssistantTurn) -> str:
    parts = (part for part in turn.message.content if isinstance(part, ReasoningPart) and part.is_native)
    return "".join(part.text for part in parts) if turn.is_own else ""


def _calls(turn: AssistantTurn, others: Sequence[object], dialect: Dialect) -> Iterator[dict[str, Any]]:
    """Returns the calls of a message, with the fields that the provider added to each."""
    is_signed = dialect.signs_calls and any(others)
    for ordinal, call in enumerate(turn.calls):
        function: dict[str, Any] = {"name": call.name, "arguments": call.arguments}
        wire: dict[str, Any] = {"id": call.id, "type": "function", "function": function}
        fields = others[ordinal] if ordinal < len(others) else None
        if isinstance(fields, dict):
            if isinstance(extra := fields.get("function"), dict):
                wire["function"] = {**extra, **function}
            wire = {**fields, **wire}
        elif dialect.signs_calls and not is_signed and ordinal == 0:  # The other calls of an answer have no signature.
            wire["extra_content"] = {"google": {"thought_signature": _NO_SIGNATURE}}
        yield wire


def _user_content(turn: UserTurn, cache: RenderCache) -> str | list[dict[str, Any]]:
    if not turn.images:
        return turn.text
    return [_text(turn.text), *(_image(image, cache) for image in turn.images)]


def _returns(turn: ReturnsTurn, cache: RenderCache) -> Iterator[dict[str, Any]]:
    """Returns the messages of returns. The API accepts images in messages of users only, which follow them."""
    for returned in turn.returns:
        yield {"role": "tool", "tool_call_id": returned.call_id, "content": returned.text}
    shown: list[dict[str, Any]] = []
    for returned in turn.returns:
        if returned.images:
            shown.append(_text(_RETURNED_IMAGES.format(call=returned.call_id)))
            shown += [_image(image, cache) for image in returned.images]
    if shown:
        yield {"role": "user", "content": shown}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(image: WireImage, cache: RenderCache) -> dict[str, Any]:
    url, detail = image_url(image, cache), image.part.detail
    if url is None:
        return _text(hidden_image(image))
    return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}


def _tool(tool: ToolSchema, is_strict: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    strict = strict_schema(tool.parameters) if is_strict else None
    function["parameters"] = tool.parameters if strict is None else strict
    if strict is not None:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(request: LlmRequest, dialect: Dialect) -> str | dict[str, Any]:
    choice = request.tool_choice
    if choice.kind is ToolChoiceKind.NAMED and dialect.named_choice:
        return {"type": "function", "function": {"name": choice.name}}
    # A named tool is the only one offered, so "any tool" has the same meaning.
    return "auto" if choice.kind is ToolChoiceKind.AUTO else dialect.required_choice


def _response_format(response_format: ResponseFormat, dialect: Dialect) -> dict[str, Any]:
    if response_format.kind != "json_schema" or not dialect.json_schema:
        return {"type": "json_object"}
    schema: dict[str, Any] = {"name": response_format.name or "answer", "schema": response_schema(response_format)}
    if response_format.strict is not None:
        schema["strict"] = response_format.strict
    return {"type": "json_schema", "json_schema": schema}
