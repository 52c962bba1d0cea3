"""Single answers of models: an agent's model is asked without the agent's memory, messages and tools."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import IdSource
from mnemesh_kit.text import require_text
from mnemesh_kit.time import Clock
from mnemesh_kit.unicode import MAX_TEXT_BYTES, well_formed
from mnemesh_types.messages import Message, Role, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.answers import well_formed_events
from mnemesh_orchestrator.llm.errors import ProviderBadAnswer, ProviderTimeout
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.port import LlmAnswer, LlmRequest
from mnemesh_orchestrator.model.models import ResponseFormat, require_valid_format
from mnemesh_orchestrator.store.agents import AgentStore

CALL_SECONDS: Final = 300.0
_MAX_PROMPT_CHARS: Final = 1_000_000
_SYSTEM: Final = "You are a helpful assistant."


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """The answer of a model, its handle, and the tokens of the call."""

    text: str
    model: str
    usage: Usage


class TextGenerationService:
    """Asks models once. Nothing is stored."""

    def __init__(self, agents: AgentStore, models: ModelCatalog, clock: Clock, ids: IdSource) -> None:
        self._agents = agents
        self._models = models
        self._clock = clock
        self._ids = ids

    async def generate(
        self,
        caller: Principal,
        agent_id: str,
        prompt: str,
        *,
        system: str | None = None,
        model: str | None = None,
        response_format: ResponseFormat | None = None,
    ) -> GeneratedText:
        """Returns the text that a model answers to a prompt.

        Args:
            caller: the owner of the agent.
            agent_id: the agent whose model and settings are used.
            prompt: the only message of the user.
            system: the system message; None or "" is a short default.
            model: the handle of another model, which has its own settings; None is the agent's.
            response_format: the format of the answer; None is text.

        Raises:
            InvalidArgument: the prompt is blank, or a field breaks its rule.
            NotFound: the agent does not exist.
            ModelUnknown: no provider serves the model.
            ProviderError: the model did not answer.
        """
        if not prompt.strip():
            raise InvalidArgument("prompt must not be blank.", field="prompt")
        for name, text in (("prompt", prompt), ("system", system or "")):
            require_text(text, name, max_chars=_MAX_PROMPT_CHARS)
        if response_format is not None:
            require_valid_format(response_format, "response_format")
        agent = await self._agents.get(caller.organization_id, agent_id)
        info, client = await self._models.resolve_for_turn(caller.organization_id, model or agent.model)
        settings = info.defaults if model else info.effective(agent.model_settings)
        request = LlmRequest(
            model=info,
            settings=settings,
            messages=(self._message(Role.SYSTEM, system or _SYSTEM), self._message(Role.USER, prompt)),
            time_zone=agent.time_zone,
            response_format=response_format or ResponseFormat(),
            is_verbatim=True,
        )
        answers: list[LlmAnswer] = []
        try:
            stream = well_formed_events(client.stream(request), info.provider)
            async with asyncio.timeout(CALL_SECONDS), aclosing(stream) as events:  # type: ignore[type-var]
                answers = [event async for event in events if isinstance(event, LlmAnswer)]
        except TimeoutError as error:
            raise ProviderTimeout(
                f"{info.handle} took longer than {CALL_SECONDS:g} s.", provider=info.provider
            ) from error
        parts = [part.text for answer in answers for part in answer.content if isinstance(part, TextPart)]
        if not "".join(parts).strip():
            raise ProviderBadAnswer(f"{info.handle} returned no text.", provider=info.provider)
        return GeneratedText(well_formed("".join(parts), MAX_TEXT_BYTES), info.handle, answers[-1].usage)

    def _message(self, role: Role, text: str) -> Message:
        return Message(id=self._ids.new("message"), role=role, created_at=self._clock.now(), content=(TextPart(text),))
