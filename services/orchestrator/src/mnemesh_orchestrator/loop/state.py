"""The state of a turn, split by lifetime: facts of the turn, state of the turn, and state of the step that runs.

Only the engine and its two parts, StepAnswers and TurnCompaction, write TurnState and StepState. The other
collaborators read them and return results.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime

from mnemesh_kit.errors import Internal
from mnemesh_kit.tracing import current_trace_id
from mnemesh_types.agents import ModelSettings, RunError
from mnemesh_types.messages import ApprovalDecision, Message
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.port import LlmClient
from mnemesh_orchestrator.loop.journal import JournalWriter
from mnemesh_orchestrator.loop.rules import LoopPolicy, RulesSolver, Toolbox
from mnemesh_orchestrator.model.agents import Agent, AgentTypeSpec, Correction
from mnemesh_orchestrator.model.conversations import Approval, ContextWindow, Conversation, PlannedCall
from mnemesh_orchestrator.model.core_memory import CoreMemory, SeenRevisions
from mnemesh_orchestrator.model.events import JournalledAnswer, Lease
from mnemesh_orchestrator.model.models import ModelInfo, ResponseFormat
from mnemesh_orchestrator.model.rules import CustomTool
from mnemesh_orchestrator.model.runs import Run, Step, StepStatus, StopReason


def prompt_limit(settings: ModelSettings, default_window: int) -> int:
    """Returns the tokens that a request may take: the window without the answer and a margin of two percent."""
    return _without_answer(settings, settings.context_window or default_window, most_for_answer=2)


def longest_prompt(settings: ModelSettings, default_window: int) -> int:
    """Returns the tokens that a request may take if nothing of it can be taken away: the answer is shorter then."""
    return _without_answer(settings, settings.context_window or default_window, most_for_answer=8)


def _without_answer(settings: ModelSettings, window: int, most_for_answer: int) -> int:
    """Returns the window without the margin and the answer, which has at most one n-th of it."""
    return window - min(settings.max_output_tokens or 0, window // most_for_answer) - window // 50


@dataclass(frozen=True, slots=True)
class CalledModel:
    """A model of a turn: its description, its effective settings, and the client that calls it."""

    info: ModelInfo
    settings: ModelSettings
    client: LlmClient
    fallback: "CalledModel | None" = None
    """Replaces this model for the rest of the turn if its provider is unavailable."""
    prompt_limit: int = field(init=False)
    """See the function `prompt_limit`."""
    longest_prompt: int = field(init=False)
    """See the function `longest_prompt`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_limit", prompt_limit(self.settings, self.info.context_window))
        object.__setattr__(self, "longest_prompt", longest_prompt(self.settings, self.info.context_window))


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The facts of a turn. They do not change while it runs."""

    run: Run
    agent: Agent
    conversation: Conversation
    lease: Lease
    spec: AgentTypeSpec
    policy: LoopPolicy
    toolbox: Toolbox
    journal: JournalWriter
    response_format: ResponseFormat | None
    """The format of the words that end the turn: the run's, or the agent's."""
    claims: int = 0
    """The number of earlier claims of the run."""
    started: float = 0.0
    """The monotonic time in seconds at which this process began the turn."""

    def takes_heartbeat(self, tool_name: str) -> bool:
        """Returns whether calls of a tool have the argument request_heartbeat."""
        return self.policy.injects_heartbeat and not RulesSolver(self.agent.tool_rules).is_terminal(tool_name)

    def decision(self, call_id: str) -> ApprovalDecision | None:
        """Returns the decision about a call that waited for one, or None."""
        if self.run.resumes is None:
            return None
        return next((item for item in self.run.resumes.decisions if item.tool_call_id == call_id), None)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The sizes of a turn's requests in tokens, as far as they are known."""

    ceiling: int | None = None
    """The corrected tokens that requests stay below because the provider refused a longer one."""
    estimate: int = 0
    """The uncorrected tokens of the request that was measured last."""
    reported: int | None = None
    """The tokens of the request that was answered last, as the provider counted them."""
    corrections: tuple[Correction, ...] = ()
    """The corrections of estimates that the run learned, with those known before. Stored when the run ends."""


@dataclass(frozen=True, slots=True)
class OpenCommit:
    """A commit of which the outcome is not known yet."""

    step: "StepState"
    messages: tuple[Message, ...]


@dataclass(slots=True)
class TurnState:
    """The state of a turn that one step leaves for the next."""

    model: CalledModel
    window: ContextWindow
    core: CoreMemory
    solver: RulesSolver
    pending: tuple[Message, ...]
    """Messages that enter the window with the next step: the run's input."""
    edited: CoreMemory | None = None
    """Core memory after the edit that was the last call of the step; None if it has to be read."""
    directories: str = ""
    """The section of the system message about files."""
    has_opened_files: bool = False
    """A call of the last step may have changed that section."""
    notes: tuple[str, ...] = ()
    """Notes for the model that only this turn's requests contain, such as unavailable services."""
    step_number: int = 0
    step_count: int = 0
    """The number of concluded steps."""
    usage: Usage = Usage()
    context_tokens: int | None = None
    """The tokens of the request and the answer of the last step; None if the provider did not report them."""
    first_token_ms: int | None = None
    tokens: TokenCounts = TokenCounts()
    approval: Approval | None = None
    """The approval that the turn stops for. Stored when the run ends."""
    open_commit: OpenCommit | None = None
    open_step: "StepState | None" = None
    """The step that runs and is not concluded."""
    compacts_after_run: bool = False
    """The window is to be compacted once the end of the run is stored."""
    starts_runs: bool = False
    """A call of the turn has started other runs, or may have."""
    summary_calls: int = 0
    """The number of calls of summary models."""

    @property
    def last_user_text(self) -> str:
        """The user's last words, in this turn or before it."""
        for message in reversed((*self.window.messages, *self.pending)):
            if message.is_from_user:
                return message.text
        return ""

    def use_fallback(self, handle: str | None) -> None:
        """Switches to the fallback model for the rest of the turn if it has this handle."""
        fallback = self.model.fallback
        if fallback is not None and fallback.info.handle == handle:
            self.model = fallback

    def mark_first_token(self, seconds: float) -> None:
        """Records the time from the start of the turn to the model's first event."""
        if self.first_token_ms is None:
            self.first_token_ms = round(seconds * 1e3)

    def count_summary_call(self, usage: Usage) -> None:
        """Counts a call of a summary model."""
        self.usage += usage
        self.summary_calls += 1

    def conclude(self, step_id: str, usage: Usage) -> None:
        """Counts a step that is over."""
        self.usage += usage
        self.step_count += 1
        if usage.prompt_tokens is not None:
            self.context_tokens = usage.prompt_tokens + (usage.completion_tokens or 0)
        if self.open_step is not None and self.open_step.id == step_id:
            self.open_step = None


@dataclass(slots=True)
class StepState:
    """The state of one step, from its first model call to its commit."""

    record: Step
    attempts: int = 0
    """The number of times that the model was called for this step."""
    spent: Usage = Usage()
    """The tokens of all these calls that the provider reported, those of unusable answers among them."""
    notes: tuple[str, ...] = ()
    """Notes for the model about its earlier answers to this step."""
    answer: JournalledAnswer | None = None
    planned: tuple[PlannedCall, ...] = ()
    is_journalled: bool = False
    """The journal holds the answer."""
    seen: SeenRevisions | None = None
    """The block revisions that the agent has seen while its calls run."""

    @property
    def id(self) -> str:
        """The step's id."""
        return self.record.id

    @property
    def given(self) -> JournalledAnswer:
        if self.answer is None:
            raise Internal("the step has no answer yet")
        return self.answer

    @property
    def has_gated_calls(self) -> bool:
        """True if a call waits for a decision."""
        return any(item.gated for item in self.planned)

    def start_attempt(self) -> int:
        """Counts a call of the model, and returns its number from 1."""
        self.attempts += 1
        return self.attempts

    def spend(self, usage: Usage) -> None:
        """Counts the tokens of a call of the model."""
        self.spent += usage

    def accept(self, answer: JournalledAnswer, planned: tuple[PlannedCall, ...], *, is_journalled: bool) -> None:
        """Takes the answer that the step continues with."""
        self.answer, self.planned, self.is_journalled = answer, planned, is_journalled
        self.seen = SeenRevisions(answer.seen) if answer.seen is not None else None


@dataclass(slots=True)
class Turn:
    """A turn that runs: its facts and its state."""

    context: TurnContext
    state: TurnState

    def complete_tools(self, custom: tuple[CustomTool, ...], note: str) -> None:
        """Adds the stored tools that could not be read when the turn began, and removes the note that says so."""
        if self.context.toolbox.completed is not None:
            self.context = replace(self.context, toolbox=self.context.toolbox.completed(custom))
            self.state.notes = tuple(known for known in self.state.notes if known != note)


def new_step(context: TurnContext, state: TurnState, step_id: str, now: datetime) -> Step:
    """Returns the record of a step that begins now."""
    model = state.model
    return Step(
        id=step_id,
        run_id=context.run.id,
        agent_id=context.agent.id,
        conversation_id=context.run.conversation_id,
        number=state.step_number,
        model=model.info.handle,
        provider=model.info.provider,
        endpoint=model.info.endpoint,
        context_window=model.settings.context_window or model.info.context_window,
        created_at=now,
        trace_id=current_trace_id(),
    )


def concluded(
    step: Step,
    usage: Usage,
    stop: StopReason | None,
    now: datetime,
    status: StepStatus,
    error: RunError | None = None,
) -> Step:
    """Returns the record of a step that is over."""
    return replace(
        step,
        status=status,
        stop_reason=stop,
        usage=usage,
        error=error,
        total_ms=round((now - step.created_at).total_seconds() * 1e3),
        completed_at=now,
    )


def required_format(run: Run, agent: Agent) -> ResponseFormat | None:
    """Returns the response format of a run: its own, or its agent's."""
    return run.config.response_format or agent.response_format
