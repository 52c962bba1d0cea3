"""A model that follows a script, and gives every call the id `call_1`, as some providers do."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mnemesh_orchestrator.llm.errors import ModelUnknown, ProviderError, ProviderUnavailable
from mnemesh_orchestrator.llm.port import (
    AnsweredCall,
    AttemptBudget,
    FinishReason,
    LlmAnswer,
    LlmEvent,
    LlmRequest,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from mnemesh_orchestrator.model.models import ModelInfo
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import ReasoningPart, Role, TextPart
from mnemesh_types.usage import Usage

from .faults import Faults

HANDLE = "scripted/one"
USAGE = Usage(100, 10, 110)
_PIECE = 7


@dataclass(frozen=True)
class Cut:
    """An answer whose stream breaks after the first pieces."""

    answer: LlmAnswer


@dataclass
class Held:
    """An answer that is returned after `released`; `asked` is set when the model was called for it."""

    answer: LlmAnswer
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)


Item = LlmAnswer | Exception | Cut | Held
Script = Sequence[Item] | Callable[[LlmRequest], Item]


def say(text: str, *, thought: str = "", finish: FinishReason = FinishReason.STOP) -> LlmAnswer:
    """Plain text, with native reasoning before it."""
    reasoning = (ReasoningPart(thought, is_native=True),) if thought else ()
    return LlmAnswer((*reasoning, *((TextPart(text),) if text else ())), (), finish, USAGE)


def call(name: str, /, **arguments: Any) -> LlmAnswer:
    """One tool call."""
    return raw_call(name, json.dumps(arguments))


def raw_call(name: str, arguments: str) -> LlmAnswer:
    """One tool call with any text as arguments."""
    return LlmAnswer((), (AnsweredCall(name, arguments, "call_1"),), FinishReason.TOOL_CALLS, USAGE)


def together(*answers: LlmAnswer, text: str = "") -> LlmAnswer:
    """Several calls in one answer, with text."""
    calls = tuple(call for answer in answers for call in answer.tool_calls)
    return replace(answers[0], tool_calls=calls, content=(TextPart(text),) if text else ())


def by_place(*answers: LlmAnswer) -> Callable[[LlmRequest], LlmAnswer]:
    """The same answer at the same position of a turn, however often it is requested."""

    def choose(request: LlmRequest) -> LlmAnswer:
        place = 0
        for message in request.messages:
            if message.role is Role.ASSISTANT:
                place += 1
            elif message.is_from_user:
                place = 0
        return answers[place]

    return choose


class ScriptedModel:
    """An LlmClient that follows a script."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._place = 0
        self.script: Script = ()
        self.requests: list[LlmRequest] = []

    def follow(self, *items: Item) -> None:
        """Returns these answers one after the other."""
        self.script, self._place = items, 0

    @property
    def last(self) -> LlmRequest:
        return self.requests[-1]

    def render(self, request: LlmRequest) -> str:
        offered = [tool.name for tool in request.tools]
        return json.dumps([request.model.handle, offered, request.tool_choice.kind, [m.text for m in request.messages]])

    async def close(self) -> None:
        """Does nothing."""

    async def stream(self, request: LlmRequest, budget: AttemptBudget | None = None) -> AsyncIterator[LlmEvent]:
        await self._faults.before("model.stream")
        point = self._faults.points - 1
        self.requests.append(request)
        item = self._next(request)
        if isinstance(item, Held):
            item.asked.set()
            await item.released.wait()
            item = item.answer
        if isinstance(item, Exception):
            if budget is not None and isinstance(item, ProviderError) and item.status is not None:
                budget.is_spent = True  # an adapter has repeated the request as often as it may
            raise item
        answer = item.answer if isinstance(item, Cut) else item
        for piece in _pieces(answer):
            yield piece
        if isinstance(item, Cut):
            raise ProviderUnavailable("The connection broke before the answer's end.", provider="scripted")
        self._faults.at(point)
        yield answer

    def _next(self, request: LlmRequest) -> Item:
        if callable(self.script):
            return self.script(request)
        assert self._place < len(self.script), "the model was asked once too often"
        self._place += 1
        return self.script[self._place - 1]


class OneOffer:
    """Serves the scripted model and no other."""

    def __init__(self, model: ScriptedModel, settings: ModelSettings) -> None:
        self.model = model
        self.settings = settings

    async def default_handle(self) -> str:
        return HANDLE

    def resolve(self, handle: str) -> tuple[ModelInfo, ScriptedModel]:
        provider, _, name = handle.partition("/")
        if provider not in ("scripted", "anthropic", "openai", "google_ai", "lmstudio_openai"):
            raise ModelUnknown(f"Nobody serves {handle}.", model=handle)
        return ModelInfo(handle, provider, name, "openai_chat", self.settings), self.model


class OneProvider:
    """Serves the scripted model to every organization."""

    def __init__(self, model: ScriptedModel, settings: ModelSettings) -> None:
        self.offer = OneOffer(model, settings)

    async def of(self, organization_id: str) -> OneOffer:
        return self.offer

    def cached(self, organization_id: str) -> OneOffer:
        return self.offer

    async def resolve(self, organization_id: str, handle: str) -> tuple[ModelInfo, ScriptedModel]:
        return self.offer.resolve(handle)

    async def resolve_for_turn(self, organization_id: str, handle: str) -> tuple[ModelInfo, ScriptedModel]:
        return self.offer.resolve(handle)


def _pieces(answer: LlmAnswer) -> list[LlmEvent]:
    events: list[LlmEvent] = []
    for part in answer.content:
        if isinstance(part, ReasoningPart):
            events += [ReasoningDelta(piece) for piece in _cut(part.text)]
        elif isinstance(part, TextPart):
            events += [TextDelta(piece) for piece in _cut(part.text)]
    for index, created in enumerate(answer.tool_calls):
        events += [ToolCallDelta(index, created.name, piece) for piece in _cut(created.arguments)]
    return events


def _cut(text: str) -> list[str]:
    size = max(_PIECE, len(text) // 1000)
    return [text[start : start + size] for start in range(0, len(text), size)]
