"""Extracts facts from messages that stay in their windows. Stores nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
from mnemesh_kit.errors import FailedPrecondition, MnemeshError, Unavailable
from mnemesh_kit.ids import derive_id
from mnemesh_kit.secret_patterns import find_secrets
from mnemesh_types.messages import Message, Role, TextPart

from mnemesh_orchestrator.compaction.completion import OnCall, usable_answer
from mnemesh_orchestrator.compaction.extraction import (
    FACTS_FORMAT,
    Material,
    facts_problem,
    parse_changes,
    rendered_length,
)
from mnemesh_orchestrator.compaction.port import SummaryFailed
from mnemesh_orchestrator.compaction.prompts import summary_prompt
from mnemesh_orchestrator.compaction.stored_memory import StoredMemory
from mnemesh_orchestrator.compaction.summarizers import CALL_SECONDS, MIN_CAPACITY, SummaryModel, default_summary_model
from mnemesh_orchestrator.compaction.transcript import transcript
from mnemesh_orchestrator.llm.errors import ContextOverflow, ModelUnknown, ProviderBadAnswer
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.llm.schemas import format_instruction
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.episodes import EpisodeCommit, FactChange, MemoryScope
from mnemesh_orchestrator.model.memory_extraction import MemoryExtractionSettings
from mnemesh_orchestrator.model.models import ModelSettings

_log = structlog.get_logger("mnemesh.extraction")

_CHARACTERS: Final = 24_000
_EARLIER_CHARACTERS: Final = 2_000
_MAX_HALVINGS: Final = 3


class UnreadableMemories(ProviderBadAnswer):
    """The model answered, and nothing of its answers can be read. The messages are not processed."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Messages of one conversation whose facts belong to one scope, and the messages just before them."""

    scope: MemoryScope
    conversation_id: str | None
    messages: tuple[Message, ...]
    earlier: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class FactExtractor:
    """Extracts facts with the configured model, the provider's small model, or the agent's own, in this order."""

    models: ModelCatalog
    memory: StoredMemory
    call_seconds: float = CALL_SECONDS

    async def extract(self, agent: Agent, passage: Passage, on_call: OnCall) -> EpisodeCommit | None:
        """Returns the changes of facts that a model finds in the messages; None if it finds none.

        Known facts that are similar to the messages are shown to the model, so that it contradicts or confirms them
        rather than adding others. Facts with secrets are left out.

        Raises:
            FailedPrecondition: no model can be called.
            Unavailable: no model answered, or recall cannot be read.
            UnreadableMemories: the answers of the last model cannot be read.
        """
        bundle = await self.memory.read(passage.scope, passage.messages)
        material = Material(passage.scope, passage.conversation_id, passage.messages, bundle.facts, {})
        problem: MnemeshError = FailedPrecondition(
            "No model can extract facts. Set memory_extraction.model, or give the agent a language model.",
            resource_id=agent.id,
        )
        for model in await self._models(agent):
            try:
                changes = await self._ask(agent, model, material, passage, on_call)
            except UnreadableMemories as error:
                _log.warning("extracted_facts_unreadable", model=model.info.handle, agent_id=agent.id)
                problem = error
                continue
            except (SummaryFailed, ContextOverflow) as error:
                _log.warning("fact_extraction_failed", model=model.info.handle, error=str(error))
                problem = Unavailable(f"{model.info.handle} extracted no facts: {error}", resource_id=agent.id)
                continue
            if not changes:
                return None
            return EpisodeCommit(passage.scope, passage.conversation_id, None, changes, model.info.handle)
        raise problem

    async def _models(self, agent: Agent) -> Sequence[SummaryModel]:
        settings = agent.memory_extraction or MemoryExtractionSettings()
        overrides = settings.model_settings or ModelSettings()
        own, client = await self.models.resolve(agent.organization_id, agent.model)
        handle = settings.model or default_summary_model(own)
        found: list[SummaryModel] = []
        if handle is not None and handle != own.handle:
            try:
                info, other = await self.models.resolve(agent.organization_id, handle)
            except ModelUnknown:
                _log.warning("extraction_model_unknown", model=handle)
            else:
                found.append(SummaryModel(info, info.effective(overrides), other))
        if own.api != "rehearsal":
            own_settings = own.effective(overrides.over(agent.model_settings))
            found.append(SummaryModel(own, own_settings, client))
        return found

    async def _ask(
        self, agent: Agent, model: SummaryModel, material: Material, passage: Passage, on_call: OnCall
    ) -> tuple[FactChange, ...]:
        limit = min(_CHARACTERS, rendered_length(material.messages))
        for _ in range(_MAX_HALVINGS):
            request = _request(agent, model, material, passage, limit)
            try:
                answer = await usable_answer(
                    on_call, model.client, request, self.call_seconds, _problem_of(material), MIN_CAPACITY * 4
                )
            except ContextOverflow:
                limit //= 2
                continue
            changes = parse_changes(answer, material)
            if changes is None:
                message = (
                    f"{model.info.handle} answered with no facts that can be read, and did not say that there are none."
                )
                raise UnreadableMemories(message, provider=model.info.provider)
            return tuple(change for change in changes if not find_secrets(change.text))
        raise SummaryFailed("the provider accepts no transcript, however short")


def _problem_of(material: Material) -> Callable[[str], str | None]:
    return lambda text: facts_problem(text, material)


def _request(agent: Agent, model: SummaryModel, material: Material, passage: Passage, limit: int) -> LlmRequest:
    settings = agent.memory_extraction or MemoryExtractionSettings()
    prompt = settings.prompt or summary_prompt("facts")
    instruction = format_instruction(FACTS_FORMAT, model.info)
    if instruction is not None:
        prompt = f"{prompt}\n\n{instruction}"
    earlier = transcript(passage.earlier, _EARLIER_CHARACTERS) if passage.earlier else ""
    newest = passage.messages[-1]

    def message(role: Role, text: str) -> Message:
        id_ = derive_id("message", newest.id, "facts", role.value)
        return Message(id=id_, role=role, created_at=newest.created_at, content=(TextPart(text),))

    request = LlmRequest(
        model=model.info,
        settings=model.settings,
        messages=(message(Role.SYSTEM, prompt), message(Role.USER, material.render(limit, earlier, "Just before"))),
        time_zone=agent.time_zone,
        is_verbatim=True,
    )
    return replace(request, response_format=FACTS_FORMAT)
