"""Builds requests and histories for the tests of the model layer."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from mnemesh_orchestrator.llm.port import LlmAnswer, LlmClient, LlmEvent, LlmRequest, ToolChoice, ToolChoiceKind
from mnemesh_orchestrator.llm.settings import Api, ProviderSettings
from mnemesh_orchestrator.model.models import ModelInfo, ToolSchema
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import ContentPart, Message, Role, TextPart, ToolCall, ToolReturn, ToolStatus

NOON = datetime(2026, 1, 20, 22, 13, 45, tzinfo=UTC)
ZONE = "America/Los_Angeles"

OPENAI = ModelInfo("openai/gpt-4o", "openai", "gpt-4o", "openai_chat", ModelSettings(context_window=128_000))
THINKER = ModelInfo("openai/gpt-5", "openai", "gpt-5", "openai_responses", ModelSettings(context_window=400_000))
CLAUDE = ModelInfo(
    "anthropic/claude-sonnet-4-5",
    "anthropic",
    "claude-sonnet-4-5",
    "anthropic",
    ModelSettings(context_window=200_000, max_output_tokens=8_192),
)


def at(base_url: str | None, type_: str = "openai", **fields: Any) -> ProviderSettings:
    """Returns settings of a provider at a base URL, named after its type."""
    return ProviderSettings(name=type_, type=type_, base_url=base_url, **fields)


def served_by(type_: str, name: str = "a-model", api: Api = Api.CHAT) -> ModelInfo:
    """Returns a model of another vendor."""
    return ModelInfo(
        f"{type_}/{name}", type_, name, api, ModelSettings(context_window=32_000), "http://there/v1", type_
    )


def message(number: int, role: Role, *content: ContentPart | str, **fields: Any) -> Message:
    parts = tuple(TextPart(part) if isinstance(part, str) else part for part in content)
    return Message(id=f"message-{number}", role=role, created_at=NOON, content=parts, **fields)


def called(number: int, call_id: str, name: str, arguments: str = "{}", *content: ContentPart | str) -> Message:
    return message(number, Role.ASSISTANT, *content, tool_calls=(ToolCall(call_id, name, arguments),))


def returned(number: int, call_id: str, name: str, text: str, status: ToolStatus = ToolStatus.SUCCESS) -> Message:
    return message(number, Role.TOOL, tool_returns=(ToolReturn.from_text(call_id, name, status, text),))


def tool(name: str, required: Sequence[str] = (), /, **properties: Any) -> ToolSchema:
    arguments = {key: value if isinstance(value, dict) else {"type": value} for key, value in properties.items()}
    schema = {"type": "object", "properties": arguments, "required": list(required)}
    return ToolSchema(name, f"Does {name}.", schema)


def ask(model: ModelInfo, *messages: Message, **fields: Any) -> LlmRequest:
    """Returns a request. Answers that name no model are the model's own."""
    fields.setdefault("settings", model.defaults)
    messages = tuple(
        replace(each, model=model.handle) if each.role is Role.ASSISTANT and each.model is None else each
        for each in messages
    )
    return LlmRequest(model=model, messages=messages, time_zone=ZONE, **fields)


def hello(model: ModelInfo = OPENAI, **fields: Any) -> LlmRequest:
    return ask(model, message(0, Role.SYSTEM, "You are an agent."), message(1, Role.USER, "Hello?"), **fields)


REQUIRED = ToolChoice(ToolChoiceKind.REQUIRED)


async def everything(client: LlmClient, request: LlmRequest) -> tuple[list[LlmEvent], LlmAnswer]:
    """Returns all deltas and the answer, which must be the only one and the last event."""
    events = [event async for event in client.stream(request)]
    answer = events.pop()
    assert isinstance(answer, LlmAnswer)
    assert not any(isinstance(event, LlmAnswer) for event in events)
    return events, answer


async def collect(client: LlmClient, request: LlmRequest, events: list[LlmEvent]) -> None:
    """Appends the events of a stream to `events`, for streams that fail in the middle."""
    async for event in client.stream(request):
        events.append(event)
