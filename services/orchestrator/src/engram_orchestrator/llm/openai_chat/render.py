"""Renders a request as the body of an OpenAI chat completion. Pure, with a stable order of keys."""

import re
from typing import Any
from urllib.parse import urlsplit

from engram_orchestrator.llm.history import AssistantTurn, ReturnsTurn, SystemTurn, Turn, UserTurn, turns
from engram_orchestrator.llm.port import LlmRequest, ToolChoiceKind
from engram_orchestrator.llm.render_cache import RenderCache
from engram_orchestrator.llm.schemas import response_schema, strict_schema
from engram_orchestrator.llm.wire import image_base64, with_provider_options
from engram_orchestrator.model.messages import ImagePart
from engram_orchestrator.model.models import ModelInfo, ResponseFormat, ToolSchema

# What engram's own loop depends on, so no provider option may change it.
_PROTECTED = frozenset({"messages", "stream", "tools"})
_REASONS = re.compile(r"^(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*chat))")
_REFUSES_PARALLEL_FLAG = re.compile(r"^o\d")


def render_body(request: LlmRequest, cache: RenderCache | None = None) -> dict[str, Any]:
    """The body that `stream` sends.

    Raises:
        ProviderOptionsInvalid: the agent's provider_options or response schema are no JSON.
    """
    cache = cache if cache is not None else RenderCache()
    body: dict[str, Any] = {"model": request.model.provider_model, "messages": []}
    for turn in turns(request, cache):
        body["messages"].extend(_messages(turn, cache))
    if request.tools:
        is_strict = bool(request.settings.strict_tool_schemas)
        body["tools"] = [_tool(tool, is_strict) for tool in request.tools]
        body["tool_choice"] = _tool_choice(request)
        if not (is_official(request.model) and _REFUSES_PARALLEL_FLAG.match(request.model.provider_model)):
            body["parallel_tool_calls"] = request.parallel_tool_calls
    if request.response_format.kind != "text":
        body["response_format"] = _response_format(request.response_format)
    body.update(_sampling(request))
    body["stream"] = True
    body["stream_options"] = {"include_usage": True}
    return with_provider_options(body, request.settings.provider_options, _PROTECTED)


def is_official(model: ModelInfo) -> bool:
    """Whether the model is served by OpenAI itself rather than by a server that speaks its language."""
    return is_official_endpoint(model.endpoint)


def is_official_endpoint(endpoint: str | None) -> bool:
    """Whether a base URL is OpenAI's own; None is."""
    if endpoint is None:
        return True
    host = urlsplit(endpoint).hostname or ""
    return host == "openai.com" or host.endswith((".openai.com", ".openai.azure.com"))


def _sampling(request: LlmRequest) -> dict[str, Any]:
    settings, model = request.settings, request.model
    official = is_official(model)
    reasons = official and bool(_REASONS.match(model.provider_model))
    sampling: dict[str, Any] = {
        "max_completion_tokens" if official else "max_tokens": settings.max_output_tokens,
        # OpenAI's reasoning models refuse both, and its other models refuse an effort.
        "temperature": None if reasons else settings.temperature,
        "top_p": None if reasons else settings.top_p,
        "reasoning_effort": settings.reasoning_effort if reasons or not official else None,
    }
    return {key: value for key, value in sampling.items() if value is not None}


def _messages(turn: Turn, cache: RenderCache) -> list[dict[str, Any]]:
    match turn:
        case SystemTurn():
            return [{"role": "system", "content": turn.text}]
        case UserTurn():
            return [{"role": "user", "content": _user_content(turn, cache)}]
        case AssistantTurn():
            return [_assistant(turn)]
        case ReturnsTurn():
            return [{"role": "tool", "tool_call_id": each.call_id, "content": each.text} for each in turn.returns]


def _assistant(turn: AssistantTurn) -> dict[str, Any]:
    text = turn.message.text
    if not turn.calls:
        return {"role": "assistant", "content": text}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in turn.calls
    ]
    return {"role": "assistant", "content": text or None, "tool_calls": calls}


def _user_content(turn: UserTurn, cache: RenderCache) -> str | list[dict[str, Any]]:
    if not turn.images:
        return turn.text
    text: dict[str, Any] = {"type": "text", "text": turn.text}
    return [text, *(_image(image, ordinal, turn, cache) for ordinal, image in enumerate(turn.images))]


def _image(image: ImagePart, ordinal: int, turn: UserTurn, cache: RenderCache) -> dict[str, Any]:
    if image.data is not None:
        data = image_base64(image, ordinal, turn.source, cache)
        url = f"data:{image.media_type or 'image/png'};base64,{data}"
    elif image.url is not None:
        url = image.url
    else:
        return {"type": "text", "text": f"[image {image.file_id}: not shown here]"}
    return {"type": "image_url", "image_url": {"url": url, **({"detail": image.detail} if image.detail else {})}}


def _tool(tool: ToolSchema, is_strict: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    strict = strict_schema(tool.parameters) if is_strict else None
    function["parameters"] = tool.parameters if strict is None else strict
    if strict is not None:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(request: LlmRequest) -> str | dict[str, Any]:
    choice = request.tool_choice
    if choice.kind is ToolChoiceKind.NAMED:
        return {"type": "function", "function": {"name": choice.name}}
    return choice.kind.value


def _response_format(wanted: ResponseFormat) -> dict[str, Any]:
    if wanted.kind != "json_schema":
        return {"type": wanted.kind}
    schema: dict[str, Any] = {"name": wanted.name or "answer", "schema": response_schema(wanted)}
    if wanted.strict is not None:
        schema["strict"] = wanted.strict
    return {"type": "json_schema", "json_schema": schema}
