"""OpenAI chat completions, and every server that implements them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from mnemesh_types.messages import ReasoningPart

from mnemesh_orchestrator.llm.assembly import StreamedAnswer
from mnemesh_orchestrator.llm.carried import carried_list, decode_carried
from mnemesh_orchestrator.llm.dialects import Api, Dialect, dialect_of
from mnemesh_orchestrator.llm.history import BRIDGE, CLOSING, OPENING, PLAIN, HistoryForm, history_turns
from mnemesh_orchestrator.llm.openai_chat_answers import REASONING_FIELDS, ChatAnswer
from mnemesh_orchestrator.llm.openai_client import OpenAiClient
from mnemesh_orchestrator.llm.port import LlmRequest, ToolChoiceKind
from mnemesh_orchestrator.llm.schemas import response_schema, sendable_tool, strict_schema
from mnemesh_orchestrator.llm.wire import (
    AssistantTurn,
    RenderCache,
    ReturnsTurn,
    SystemTurn,
    Turn,
    UserTurn,
    WireImage,
    hidden_image,
    image_url,
    with_parameters,
    with_provider_options,
)
from mnemesh_orchestrator.model.models import ModelInfo, ResponseFormat, ToolSchema

Message = dict[str, Any]

# The loop depends on these fields, so no provider option may change them.
_PROTECTED = frozenset({"messages", "stream", "tools"})
_REASONS = re.compile(r"^(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*chat))")
_REFUSES_PARALLEL_FLAG = re.compile(r"^o\d")
_OFFICIAL: Final = frozenset({"openai", "azure"})
_SAMPLERS: Final = frozenset({"openrouter", "together"})
"""Vendors that take parameters of samplers that OpenAI does not have. So do local servers."""
_PARAMETERS: Final = ("seed", "stop", "frequency_penalty", "presence_penalty")
_SERVICE: Final = ("service_tier", "verbosity")
_CALL: Final = "[I called the tool {name} with {arguments}]"
_RETURN: Final = "[The tool returned: {text}]"
_RETURNED_IMAGES: Final = "[Images that the tool call {call} returned:]"
# No carried field replaces one that is rendered.
_HELD: Final = frozenset({"role", "tool_calls", *REASONING_FIELDS})
# Gemini documents this value for calls that it did not make.
_NO_SIGNATURE: Final = "skip_thought_signature_validator"

__all__ = ["OpenAiChatClient", "render_body"]


def render_body(request: LlmRequest, cache: RenderCache | None = None, form: HistoryForm = PLAIN) -> dict[str, Any]:
    """Returns the body that `stream` sends, in the dialect of the model's vendor and a form of history.

    Raises:
        ProviderOptionsInvalid: the agent's provider_options or response schema are not JSON.
    """
    cache = cache if cache is not None else RenderCache()
    dialect = dialect_of(request.model)
    body: dict[str, Any] = {"model": request.model.provider_model}
    body["messages"] = _messages(history_turns(request, cache, form), cache, dialect, form)
    if request.tools:
        is_strict = bool(request.settings.strict_tool_schemas) and dialect.strict_tools
        body["tools"] = [_tool(sendable_tool(tool, dialect), is_strict) for tool in request.tools]
        body["tool_choice"] = _tool_choice(request, dialect)
        if dialect.parallel_flag and not _refuses_parallel_flag(request.model):
            body["parallel_tool_calls"] = request.parallel_tool_calls
    if request.response_format.kind != "text":
        body["response_format"] = _response_format(request.response_format, dialect)
    body.update(_sampling(request, dialect))
    body["stream"] = True
    if dialect.stream_usage:
        body["stream_options"] = {"include_usage": True}
    with_parameters(body, request.parameters, _parameters(request.model, dialect))
    return with_provider_options(body, request.settings.provider_options, _PROTECTED)


def reasons(model: ModelInfo) -> bool:
    """Returns whether this is one of OpenAI's reasoning models, which refuse a temperature."""
    return dialect_of(model).type in _OFFICIAL and _REASONS.match(model.provider_model) is not None


def _parameters(model: ModelInfo, dialect: Dialect) -> dict[str, str]:
    """Returns the names of the parameters of a run that the vendor takes."""
    if reasons(model):
        return {name: name for name in _SERVICE}
    names = {name: name for name in _PARAMETERS}
    if dialect.type in _OFFICIAL:
        names |= {name: name for name in ("logit_bias", *_SERVICE)}
    if dialect.is_local or dialect.type in _SAMPLERS:
        names |= {name: name for name in ("logit_bias", "top_k", "min_p", "repetition_penalty")}
    if dialect.type == "mistral":
        names["seed"] = "random_seed"
    return names


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


def _messages(history: Sequence[Turn], cache: RenderCache, dialect: Dialect, form: HistoryForm) -> list[Message]:
    """Returns the turns with roles in an order that servers accept.

    Neighbours of one role are one message, the first is the user's, and so is the last unless it is a tool's. A message
    that is appended changes the last one at most, so that a provider's cache of the others stays valid.
    """
    messages: list[Message] = []
    needs_bridge = form.strict_roles or not dialect.user_after_tool
    last = ""
    for message in _single_messages(history, cache, dialect, form):
        role = message["role"]
        if role == last and role != "tool":
            messages[-1] = _joined(messages[-1], message)
            continue
        if last == "tool" and role == "user" and needs_bridge:
            messages.append({"role": "assistant", "content": BRIDGE})
        elif last in ("", "system") and role == "assistant":
            messages.append({"role": "user", "content": OPENING})
        messages.append(message)
        last = role
    if last in ("assistant", "system", ""):
        messages.append({"role": "user", "content": CLOSING if last == "assistant" else OPENING})
    required = "" if form.reasoning is None and dialect.returns_reasoning else form.reasoning
    return messages if required is None else [_with_reasoning(message, required) for message in messages]


def _with_reasoning(message: Message, required: str) -> Message:
    """Returns a message of a server that requires the reasoning of every answer."""
    name = REASONING_FIELDS[0]
    return message if message["role"] != "assistant" or message.get(name) else {**message, name: required}


def _single_messages(
    history: Sequence[Turn], cache: RenderCache, dialect: Dialect, form: HistoryForm
) -> Iterator[Message]:
    """Yields the messages of each turn. Strict servers get one call per message, each followed by its return."""
    shared = replace(form, refused=frozenset())
    key = dialect.type if shared == PLAIN else f"{dialect.type} {shared}"  # the hash of a text is computed once
    assistant: Message | None = None
    for turn in history:
        messages = _turn_messages(turn, cache, dialect, form, key)
        if assistant is not None:
            messages, assistant = _one_by_one(assistant, messages), None
        elif form.strict_roles and isinstance(turn, AssistantTurn) and len(messages[0].get("tool_calls", ())) > 1:
            (assistant,) = messages  # The turn of its returns follows.
            continue
        yield from messages


def _one_by_one(assistant: Message, returns: list[Message]) -> list[Message]:
    of_call = {message["tool_call_id"]: message for message in returns if message["role"] == "tool"}
    messages: list[Message] = []
    for call in assistant["tool_calls"]:
        first = {"role": "assistant", "content": None} if messages else assistant
        messages += ({**first, "tool_calls": [call]}, of_call[call["id"]])
    return messages + [message for message in returns if message["role"] != "tool"]


def _joined(first: Message, second: Message) -> Message:
    """Returns two messages of one role as one. No call of the first is without its return."""
    joined = {**first, **second}
    for name in {*first} & {*second} - {"role", "tool_calls"}:
        one, other = first[name], second[name]
        if not one or not other:
            joined[name] = one or other
        elif isinstance(one, str) and isinstance(other, str):
            joined[name] = f"{one}\n\n{other}"
        elif name == "content":
            joined[name] = [*_content_parts(one), *_content_parts(other)]
        elif isinstance(one, list) and isinstance(other, list):
            joined[name] = [*one, *other]
    return joined


def _content_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_text(content)] if isinstance(content, str) else content


def _turn_messages(turn: Turn, cache: RenderCache, dialect: Dialect, form: HistoryForm, key: str) -> list[Message]:
    if isinstance(turn, SystemTurn):
        return [{"role": "system" if form.has_system else "user", "content": turn.text}]
    messages = turn.rendered.get(key)
    if messages is None:
        messages = _rendered(turn, cache, dialect, form)
        if not _has_images(turn):  # The cache bounds the memory of images.
            turn.rendered[key] = messages
    return messages


def _rendered(
    turn: UserTurn | AssistantTurn | ReturnsTurn, cache: RenderCache, dialect: Dialect, form: HistoryForm
) -> list[Message]:
    match turn:
        case UserTurn():
            return [{"role": "user", "content": _user_content(turn, cache)}]
        case AssistantTurn():
            message = _assistant(turn, dialect, form)
            return [_with_calls_as_text(message) if form.calls_as_text else message]
        case ReturnsTurn():
            messages = list(_returns(turn, cache))
            return [_return_as_text(message) for message in messages] if form.calls_as_text else messages


def _with_calls_as_text(message: Message) -> Message:
    calls = (call["function"] for call in message.get("tool_calls", ()))
    lines = [_CALL.format(name=call["name"], arguments=call["arguments"]) for call in calls]
    text = message["content"] if isinstance(message["content"], str) else ""
    return {"role": "assistant", "content": "\n\n".join(line for line in (text, *lines) if line)}


def _return_as_text(message: Message) -> Message:
    if message["role"] != "tool":
        return message
    return {"role": "user", "content": _RETURN.format(text=message["content"])}


def _has_images(turn: UserTurn | AssistantTurn | ReturnsTurn) -> bool:
    match turn:
        case UserTurn():
            return bool(turn.images)
        case AssistantTurn():
            return False
        case ReturnsTurn():
            return any(returned.images for returned in turn.returns)


def _assistant(turn: AssistantTurn, dialect: Dialect, form: HistoryForm) -> Message:
    carried = decode_carried(turn.message, Api.CHAT) if turn.is_own else {}
    message: dict[str, Any] = {"role": "assistant", "content": turn.message.text or (None if turn.calls else "")}
    names = [name for name in REASONING_FIELDS if name in carried_list(carried, "reasoning")]
    if not names and (form.reasoning is not None or dialect.returns_reasoning):
        names = [REASONING_FIELDS[0]]
    message.update(dict.fromkeys(names, _reasoning(turn)))
    if isinstance(fields := carried.get("fields"), dict):
        message.update({name: value for name, value in fields.items() if name not in _HELD})
    if turn.calls:
        is_signed = dialect.signs_calls or form.signs_calls
        message["tool_calls"] = list(_calls(turn, carried_list(carried, "calls"), form, is_signed=is_signed))
    return {name: value for name, value in message.items() if name not in form.left_out}


def _reasoning(turn: AssistantTurn) -> str:
    parts = (part for part in turn.message.content if isinstance(part, ReasoningPart) and part.is_native)
    return "".join(part.text for part in parts) if turn.is_own else ""


def _calls(turn: AssistantTurn, others: Sequence[object], form: HistoryForm, *, is_signed: bool) -> Iterator[Message]:
    """Returns the calls of a message, with the fields that the provider added to each."""
    has_signature = any(others)
    for ordinal, call in enumerate(turn.calls):
        function: dict[str, Any] = {"name": call.name, "arguments": call.arguments}
        wire: dict[str, Any] = {"id": call.id, "type": "function", "function": function}
        fields = others[ordinal] if ordinal < len(others) else None
        if isinstance(fields, dict):
            if isinstance(extra := fields.get("function"), dict):
                wire["function"] = {**extra, **function}
            wire = {**{name: value for name, value in fields.items() if name not in form.left_out}, **wire}
        elif is_signed and not has_signature and ordinal == 0:  # The other calls of an answer have no signature.
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


class OpenAiChatClient(OpenAiClient):
    """A client of chat completions."""

    api_path = "/chat/completions"

    def _body(self, request: LlmRequest, cache: RenderCache, form: HistoryForm) -> dict[str, Any]:
        return render_body(request, cache, form)

    def _answer(self, provider: str) -> StreamedAnswer:
        return ChatAnswer(provider)
