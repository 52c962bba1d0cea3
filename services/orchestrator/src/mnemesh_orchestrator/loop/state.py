"""The state of one turn while it is carried out."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from mnemesh_types.messages import ApprovalDecision, Message, Role
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.port import LlmClient
from mnemesh_orchestrator.loop.policy import LoopPolicy
from mnemesh_orchestrator.loop.rules import RulesSolver
from mnemesh_orchestrator.loop.toolbox import Toolbox
from mnemesh_orchestrator.model.agent_types import AgentTypeSpec
from mnemesh_orchestrator.model.agents import Agent, Correction
from mnemesh_orchestrator.model.approvals import Approval, PlannedCall
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_orchestrator.model.events import DurableBody, EventBody, RunEvent
from mnemesh_orchestrator.model.journal import EntryKind, JournalEntry, JournalledAnswer
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.model.models import ModelInfo, ModelSettings, ResponseFormat
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.model.seen_revisions import SeenRevisions
from mnemesh_orchestrator.model.steps import Step, StepTrace
from mnemesh_orchestrator.prompt.packaging import event_type


def prompt_limit(settings: ModelSettings, default_window: int) -> int:
    """Tokens that a request may take: the window less the answer, and less a margin of two in a hundred."""
    window = settings.context_window or default_window
    return window - min(settings.max_output_tokens or 0, window // 2) - window // 50


@dataclass(frozen=True, slots=True)
class CalledModel:
    """The model of a turn: who serves it, and the settings that hold."""

    info: ModelInfo
    settings: ModelSettings
    client: LlmClient
    fallback: "CalledModel | None" = None
    """Goes on where this one stays away."""

    @property
    def prompt_limit(self) -> int:
        """See the function of this name."""
        return prompt_limit(self.settings, self.info.context_window)


@dataclass(slots=True)
class Progress:
    """How far a run has come: what it cost, the number of its newest event, and what its next write takes along."""

    run: Run
    lease: Lease
    began: float
    """Monotonic seconds."""
    claims: int = 0
    """How often somebody began to carry the run out before."""
    sequence: int = 0
    number: int = 0
    """Of the step that is being carried out."""
    concluded: int = 0
    """Steps that are over."""
    usage: Usage = Usage()
    first_token_ms: int | None = None
    steps: list[Step] = field(default_factory=list)
    """Concluded steps that are not recorded yet."""
    traces: list[StepTrace] = field(default_factory=list)
    """What was asked and answered and is not recorded yet."""
    told: list[RunEvent] = field(default_factory=list)
    """Events that were told and are not stored yet: those of an answer that the commit holds."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from the numbering of events until they are stored."""
    approval: Approval | None = None
    """What the run stops for; stored with its end."""
    corrections: tuple[Correction, ...] = ()
    """What the run taught of estimates, with what was known before; stored with its end."""

    @property
    def last(self) -> bool:
        """No step may follow this one."""
        return self.number >= self.run.config.max_steps

    def durable(self, now: datetime, step_id: str | None, *bodies: DurableBody) -> list[RunEvent]:
        """The next events; they have taken place once they are `recorded` or `tell` knows them."""
        return [
            RunEvent(self.run.id, now, body, number, step_id) for number, body in enumerate(bodies, self.sequence + 1)
        ]

    def recorded(self, events: Sequence[RunEvent], steps: Sequence[Step], traces: Sequence[StepTrace]) -> None:
        """Events, steps and traces that are stored."""
        self.sequence += len(events)
        self.steps = self.steps[len(steps) :]
        self.traces = self.traces[len(traces) :]

    def tell(self, events: Sequence[RunEvent]) -> None:
        """Events that are stored with the end of the run; until then the commit of their step vouches for them."""
        self.sequence += len(events)
        self.told.extend(events)

    def live(self, now: datetime, step_id: str | None, body: EventBody) -> RunEvent:
        """An event that is told and not stored."""
        return RunEvent(self.run.id, now, body, None, step_id)


@dataclass(frozen=True, slots=True)
class Answered:
    """A step's answer, and whether the journal holds it already."""

    answer: JournalledAnswer
    planned: tuple[PlannedCall, ...]
    journalled: bool
    step: Step


@dataclass(frozen=True, slots=True)
class Committing:
    """What a step adds to the window."""

    answered: Answered
    messages: tuple[Message, ...]


@dataclass(slots=True)
class Turn:
    """What the holder of a run knows. Changed by the engine only."""

    run: Run
    agent: Agent
    conversation: Conversation
    lease: Lease
    progress: Progress
    spec: AgentTypeSpec
    policy: LoopPolicy
    model: CalledModel
    solver: RulesSolver
    toolbox: Toolbox
    window: ContextWindow
    core: CoreMemory
    journal: Mapping[tuple[str, EntryKind, int], JournalEntry]
    pending: tuple[Message, ...]
    """Messages that enter the window with the next step: the run's input."""
    notes: tuple[str, ...] = ()
    """What the model is told in this turn's requests only: tiers that are away."""
    sight: SeenRevisions | None = None
    """What the agent has seen of its blocks when it gave the answer whose calls are being carried out."""
    committing: "Committing | None" = None
    """The commit under way, of which nobody knows yet whether it took place."""
    ceiling: int | None = None
    """Corrected tokens that requests stay below since the provider refused a longer one."""
    reported: int | None = None
    """Tokens of the request that was answered last, as the provider counted them."""
    estimate: int = 0
    """Uncorrected tokens of the request that was measured last."""

    asked: int = 0
    """How often the step that is carried out was asked."""

    @property
    def response_format(self) -> ResponseFormat | None:
        """What the words that end the turn have to be."""
        return wanted_format(self.run, self.agent)

    @property
    def heard(self) -> str:
        """The user's last words, in this turn or before it."""
        for message in reversed((*self.window.messages, *self.pending)):
            if message.role is Role.USER and event_type(message.text) is None:
                return message.text
        return ""

    def goes_on_with(self, handle: str | None) -> None:
        """Leaves the turn to the fallback, if that is the model of this handle, from here to its end."""
        fallback = self.model.fallback
        if fallback is not None and fallback.info.handle == handle:
            self.model = fallback

    def entry(self, step_id: str, kind: EntryKind, ordinal: int = 0) -> JournalEntry | None:
        """What the journal holds from before a restart."""
        return self.journal.get((step_id, kind, ordinal))

    def decision(self, call_id: str) -> ApprovalDecision | None:
        """What was decided about a call that had waited."""
        given = self.run.resumes.decisions if self.run.resumes is not None else ()
        return next((item for item in given if item.tool_call_id == call_id), None)


def wanted_format(run: Run, agent: Agent) -> ResponseFormat | None:
    """The response format of a run: its own, or its agent's."""
    return run.config.response_format or agent.response_format


def committed(turn: Turn, step_id: str) -> tuple[Message, ...]:
    """What the window holds of the step, where it was committed before a restart."""
    return tuple(message for message in turn.window.messages if message.step_id == step_id)
