"""The spans of agents, models and tools, by OpenTelemetry's conventions for generative AI.

Texts of messages and tools are recorded if `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` is true.
"""

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractContextManager, aclosing
from typing import Any, Final
from urllib.parse import urlsplit

from mnemesh_kit.tracing import Attributes, end_span, has_content, span, start_span
from mnemesh_types.messages import ContentPart, ImagePart, Message, ReasoningPart, Role, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.errors import ProviderError
from mnemesh_orchestrator.llm.port import AttemptBudget, LlmAnswer, LlmClient, LlmEvent, LlmRequest
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.runs import Run

_ROLES: Final = (Role.USER, Role.ASSISTANT, Role.TOOL)
_PROVIDER_NAMES: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google_ai": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""The names of the conventions, where ours differ."""


def agent_span(agent: Agent, run: Run) -> AbstractContextManager[Any]:
    """Records a turn of an agent."""
    return span(
        f"invoke_agent {agent.name}",
        lambda: {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.id": agent.id,
            "gen_ai.agent.name": agent.name,
            "gen_ai.conversation.id": run.conversation_id,
            "gen_ai.request.model": agent.model,
            "mnemesh.run.id": run.id,
            "mnemesh.organization.id": run.organization_id,
        },
    )


def tool_span(name: str, call_id: str, arguments: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Records the execution of a tool. Its result is added by `add_tool_result`."""
    return span(
        f"execute_tool {name}",
        lambda: {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.call.arguments": _as_json(arguments) if has_content() else None,
        },
    )


def add_tool_result(span_: Any, text: str, *, ok: bool) -> None:
    """Adds the result of a tool to its span; nothing if tracing is off."""
    if span_ is None:
        return
    if not ok:
        span_.set_attribute("error.type", "tool_error")
    if has_content():
        span_.set_attribute("gen_ai.tool.call.result", text)


async def recorded_events(
    client: LlmClient, request: LlmRequest, budget: AttemptBudget | None
) -> AsyncIterator[LlmEvent]:
    """Yields the events of a call of a model, with all its attempts, and records it as one span."""
    recorded = start_span(f"chat {request.model.provider_model}", lambda: _request_attributes(request))
    answer: LlmAnswer | None = None
    error: BaseException | None = None
    try:
        events = client.stream(request, budget)
        async with aclosing(events):  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, LlmAnswer):
                    answer = event
                yield event
    except BaseException as raised:
        error = raised
        raise
    finally:
        if recorded is not None:
            # A reader that has the answer may close the generator.
            end_span(recorded, _end_attributes(answer, error), error if answer is None else None)


def _request_attributes(request: LlmRequest) -> Attributes:
    model, settings = request.model, request.settings
    address = urlsplit(model.endpoint or "")
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDER_NAMES.get(model.provider_type, model.provider_type or model.provider),
        "gen_ai.request.model": model.provider_model,
        "gen_ai.request.max_tokens": settings.max_output_tokens,
        "gen_ai.request.temperature": settings.temperature,
        "gen_ai.request.top_p": settings.top_p,
        "server.address": address.hostname,
        "server.port": address.port,
    }
    if has_content():
        system = [message for message in request.messages if message.role is Role.SYSTEM]
        others = (message for message in request.messages if message.role is not Role.SYSTEM)
        attributes["gen_ai.system_instructions"] = _as_json([part for item in system for part in _parts(item.content)])
        attributes["gen_ai.input.messages"] = _as_json([_shown(message) for message in others])
    return attributes


def _end_attributes(answer: LlmAnswer | None, error: BaseException | None) -> Attributes:
    usage = error.usage if isinstance(error, ProviderError) else Usage()
    if answer is not None:
        usage = answer.usage
    attributes: dict[str, Any] = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }
    if answer is None:
        return attributes
    reason = answer.finish_reason.value
    attributes["gen_ai.response.finish_reasons"] = [answer.finish_word or reason]
    if has_content():
        calls = (_call(call.provider_id, call.name, call.arguments) for call in answer.tool_calls)
        shown = {"role": "assistant", "parts": [*_parts(answer.content), *calls], "finish_reason": reason}
        attributes["gen_ai.output.messages"] = _as_json([shown])
    return attributes


def _shown(message: Message) -> dict[str, Any]:
    """Returns a message of a request as the conventions write it."""
    calls = (_call(call.id, call.name, call.arguments) for call in message.tool_calls)
    returns = (
        {"type": "tool_call_response", "id": item.tool_call_id, "response": _text(item.content)}
        for item in message.tool_returns
    )
    role = message.role.value if message.role in _ROLES else Role.USER.value
    return {"role": role, "parts": [*_parts(message.content), *calls, *returns]}


def _parts(content: Iterable[ContentPart]) -> list[dict[str, Any]]:
    """Returns the readable parts of a content. Of an image, its type: its bytes would be the whole span."""
    shown: list[dict[str, Any]] = []
    for part in content:
        match part:
            case TextPart(text=text):
                shown.append({"type": "text", "content": text})
            case ReasoningPart(text=text):
                shown.append({"type": "reasoning", "content": text})
            case ImagePart(media_type=media_type, url=url):
                shown.append({"type": "uri", "modality": "image", "mime_type": media_type, "uri": url})
            case _:
                pass
    return shown


def _call(id_: str | None, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool_call", "id": id_, "name": name, "arguments": arguments}


def _text(content: Iterable[ContentPart]) -> str:
    return "\n".join(part.text for part in content if isinstance(part, TextPart))


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
