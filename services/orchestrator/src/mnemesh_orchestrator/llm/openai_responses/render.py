"""Renders a request as the body of a call to OpenAI's Responses API. Pure, with a stable order of keys.

The provider stores nothing: every request contains the whole window, and reasoning is returned encrypted.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mnemesh_types.messages import SummarizedReasoningPart, TextPart

from mnemesh_orchestrator.llm.block_order import in_order, ordered_texts
from mnemesh_orchestrator.llm.carried import carried_list, decode_carried
from mnemesh_orchestrator.llm.dialects import Api, Dialect, dialect_of
from mnemesh_orchestrator.llm.history import (
    history_turns,
)
from mnemesh_orchestrator.llm.history_forms import PLAIN, HistoryForm
from mnemesh_orchestrator.llm.openai_chat.render import reasons
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
    WireCall,
    WireImage,
)
from mnemesh_orchestrator.llm.wire import hidden_image, image_url, with_parameters, with_provider_options
from mnemesh_orchestrator.model.models import ResponseFormat, ToolSchema

Item = dict[str, Any]

_PROTECTED: Final = frozenset({"instructions", "input", "stream", "store", "tools"})
PHASE: Final = "phase:"
"""The start of the signature of a text that the provider marked as commentary or final answer."""


def render_body(request: LlmRequest, cache: RenderCache | None = None, form: HistoryForm = PLAIN) -> dict[str, Any]:
    """Returns the body that `stream` sends.

    Raises:
        ProviderOptionsInvalid: the agent's provider_options or response schema are not JSON.
    """
    cache = cache if cache is not None else RenderCache()
    dialect, settings = dialect_of(request.model), request.settings
    history = history_turns(request, cache, form)
    body: dict[str, Any] = {"model": request.model.provider_model}
    if heads := [turn.text for turn in history if isinstance(turn, SystemTurn)]:
        body["instructions"] = heads[0]
    body["input"] = [item for turn in history for item in _items(turn, cache)]
    if request.tools:
        is_strict = bool(settings.strict_tool_schemas) and dialect.strict_tools
        body["tools"] = [_tool(sendable_tool(tool, dialect), is_strict) for tool in request.tools]
        body["tool_choice"] = _tool_choice(request, dialect)
        if dialect.parallel_flag:
            body["parallel_tool_calls"] = request.parallel_tool_calls
    if request.response_format.kind != "text":
        body["text"] = {"format": _format(request.response_format)}
    body.update(_sampling(request))
    body["store"] = False
    body["stream"] = True
    with_parameters(body, request.parameters, {"service_tier": "service_tier"})
    return with_provider_options(body, settings.provider_options, _PROTECTED)


def _sampling(request: LlmRequest) -> dict[str, Any]:
    settings, is_reasoning = request.settings, reasons(request.model)
    thinks = is_reasoning or bool(settings.enable_reasoner)
    reasoning = {
        "effort": settings.reasoning_effort,
        # Some organizations must be verified before they may request summaries, so they are requested on demand only.
        "summary": "auto" if settings.enable_reasoner else None,
    }
    reasoning = {key: value for key, value in reasoning.items() if value is not None}
    sampling = {
        "max_output_tokens": settings.max_output_tokens,
        "temperature": None if is_reasoning else settings.temperature,
        "top_p": None if is_reasoning else settings.top_p,
        "reasoning": reasoning if thinks and reasoning else None,
        "include": ["reasoning.encrypted_content"] if thinks else None,
    }
    return {key: value for key, value in sampling.items() if value is not None}


def _items(turn: Turn, cache: RenderCache) -> Iterator[Item]:
    match turn:
        case SystemTurn():
            return
        case UserTurn():
            yield {"role": "user", "content": _with_images(turn.text, turn.images, cache)}
        case AssistantTurn():
            yield from _assistant(turn)
        case ReturnsTurn():
            for returned in turn.returns:
                output = _with_images(returned.text, returned.images, cache)
                yield {"type": "function_call_output", "call_id": returned.call_id, "output": output}


def _assistant(turn: AssistantTurn) -> Iterator[Item]:
    """Yields the items of a message of the model, those of its provider in their own order."""
    order = carried_list(decode_carried(turn.message, Api.RESPONSES), "order") if turn.is_own else []
    texts = ordered_texts(order, turn.message.content)
    reasoning = [part for part in turn.message.content if isinstance(part, SummarizedReasoningPart) and turn.is_own]
    items: list[Item] = []
    for kind, part, fields in in_order(order, texts, reasoning, turn.calls):
        match kind:
            case "text":
                items.append(_text_item(part, is_own=turn.is_own))
            case "reasoning" if part.encrypted_content is not None:
                items.append(_reasoning(part))
            case "call":
                items.append(_call_item(part, fields))
            case None:
                items.append(dict(fields))
    for item, following in zip(items, [*items[1:], None], strict=False):
        # The API refuses reasoning without the output that followed it.
        if item.get("type") != "reasoning" or following is not None:
            yield item


def _call_item(call: WireCall, fields: Mapping[str, Any]) -> Item:
    return {**fields, "type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}


def _reasoning(part: SummarizedReasoningPart) -> Item:
    summary = [{"type": "summary_text", "text": text} for text in part.summaries]
    return {"type": "reasoning", "id": part.id, "summary": summary, "encrypted_content": part.encrypted_content}


def _text_item(part: TextPart, *, is_own: bool) -> Item:
    item: Item = {"role": "assistant", "content": part.text}
    if is_own and part.signature is not None and part.signature.startswith(PHASE):
        item["phase"] = part.signature.removeprefix(PHASE)
    return item


def _with_images(text: str, images: tuple[WireImage, ...], cache: RenderCache) -> str | list[Item]:
    if not images:
        return text
    return [{"type": "input_text", "text": text}, *(_image(image, cache) for image in images)]


def _image(image: WireImage, cache: RenderCache) -> Item:
    url = image_url(image, cache)
    if url is None:
        return {"type": "input_text", "text": hidden_image(image)}
    return {"type": "input_image", "image_url": url, "detail": image.part.detail or "auto"}


def _tool(tool: ToolSchema, is_strict: bool) -> Item:
    strict = strict_schema(tool.parameters) if is_strict else None
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters if strict is None else strict,
        "strict": strict is not None,  # An omitted value means true here.
    }


def _tool_choice(request: LlmRequest, dialect: Dialect) -> str | Item:
    choice = request.tool_choice
    if choice.kind is ToolChoiceKind.NAMED and dialect.named_choice:
        return {"type": "function", "name": choice.name}
    return "auto" if choice.kind is ToolChoiceKind.AUTO else dialect.required_choice


def _format(response_format: ResponseFormat) -> Item:
    if response_format.kind != "json_schema":
        return {"type": response_format.kind}
    schema: Item = {
        "type": "json_schema",
        "name": response_format.name or "answer",
        "schema": response_schema(response_format),
    }
    if response_format.strict is not None:
        schema["strict"] = response_format.strict
    return schema
