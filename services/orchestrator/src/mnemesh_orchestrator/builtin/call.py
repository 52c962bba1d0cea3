"""A call of a built-in tool, and the runs of other agents that a run may start."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from mnemesh_types.messages import ImagePart

from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.core_memory import AgentAuthor, MemoryAccess, SeenRevisions
from mnemesh_orchestrator.model.events import MemberEvent
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig
from mnemesh_orchestrator.model.runs import ChildRun, Run, RunOrigin

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """A run in the default conversation of an agent that another run starts.

    `effect_id` identifies the run among those that its parent starts; the id of the run is derived from both.
    `is_awaited` is true if the parent waits for the end.
    """

    effect_id: str
    agent_id: str
    messages: tuple[InputMessage, ...]
    origin: RunOrigin
    config: RunConfig = RunConfig()  # noqa: RUF009 -- frozen
    is_awaited: bool = True
    group_id: str | None = None
    supervised_agent_ids: tuple[str, ...] = ()
    retries: Run | None = None
    """The ended run whose input this run has. It is retried as RetryRun would."""


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """The end of a run, and the texts that the agent said to the user in it, in order."""

    run: Run
    words: tuple[str, ...]


ShowApproval = Callable[[MemberEvent], Awaitable[None]]
"""Shows the followers of a run the approval that another agent asks for."""


class ChildRunsPort(Protocol):
    """Starts runs for runs, and waits for their end, whichever process executes them."""

    async def start(self, parent: Run, request: ChildRequest) -> Run:
        """Stores a run, and starts it if its conversation is idle. A repeat returns the first run.

        Raises:
            NotFound: The agent does not exist.
            PendingApproval: The agent waits for an approval.
            MessageCycle: The agent waits for the parent, itself or through other agents.
            MessageDepthExceeded: Too many agents called one another.
        """
        ...

    async def outcome(self, parent: Run, run_id: str, show_approval: ShowApproval) -> ChildOutcome:
        """Waits until a run that `parent` started has ended, and returns how.

        A run that stops for an approval continues as the run that answers it: that one's end is waited for, and it is
        the run of the outcome. The words are those of both.

        Args:
            parent: The run that waits.
            run_id: The run that it waits for.
            show_approval: Gets the request for each approval that the parent waits for, once no run but an answer can
                go on; also those of runs that the awaited run waits for. It may get a request repeatedly.

        Raises:
            NotFound: The run was deleted, with its agent or alone.
            MessageCycle: The run waits in a queue behind a run that waits for `parent` or for one of its ancestors. It
                was cancelled.
        """
        ...

    async def wait_for_answering_run(self, asking: Run) -> str | None:
        """Waits until the approval for which a run stopped is answered. Returns the id of the run that answers it.

        Returns None if no one can answer it any more.
        """
        ...

    async def withdraw(self, parent: Run, run_id: str) -> bool:
        """Cancels a run that has not begun. Returns False, and changes nothing, if it has. Raises NotFound."""
        ...

    async def list_children(self, parent: Run) -> tuple[ChildRun, ...]:
        """Returns the runs that a run started, in the order of their start."""
        ...

    def run_id(self, parent: Run, effect_id: str) -> str:
        """Returns the id of the run that `start` stores for an effect of a run."""
        ...

    async def cancel(self, parent: Run) -> None:
        """Cancels the runs that a run started and waits for, and those that they wait for.

        Approvals that these wait for are withdrawn.
        """
        ...


async def _show_to_no_one(_event: MemberEvent) -> None:
    """Outside of a turn, no call waits for other agents."""


@dataclass(frozen=True, slots=True)
class BuiltinCall:
    """A call of a built-in tool.

    `effect_prefix` is "{step_id}/{call ordinal}". It is the same after a restart, so that an effect is not repeated and
    its first result is returned again. `time_zone` (IANA) is the agent's. `run` and `seen_revisions` are None outside
    of a turn. `seen_revisions` holds the revisions of blocks that the agent has seen, its own edits included.
    `conversation` is the conversation of the call, if any, and `last_user_text` the last user message in it.
    `memory` has the scopes of the agent's memories that the call may read and change.
    """

    name: str
    arguments: Mapping[str, Any]
    agent_id: str
    time_zone: str
    tool_call_id: str
    run: Run | None
    effect_prefix: str
    conversation: Conversation | None = None
    seen_revisions: SeenRevisions | None = None
    last_user_text: str = ""
    memory: MemoryAccess | None = None
    user_message_ids: tuple[str, ...] = ()
    """The messages of users in the input of the turn."""
    agent_name: str = ""
    shows_opened_files: bool = False
    """Whether the result of opening files contains their text, because the prompt does not change within the turn."""
    embedder: str | None = None
    """The embedder of an archive that the call creates; None is the default of archival."""
    show_approval: ShowApproval = _show_to_no_one
    """Shows the followers of the run the approvals of agents whose replies the call waits for."""

    @property
    def run_id(self) -> str | None:
        """The id of the run that makes the call; None outside of a turn."""
        return None if self.run is None else self.run.id

    @property
    def conversation_id(self) -> str | None:
        if self.conversation is not None:
            return self.conversation.id
        return None if self.run is None else self.run.conversation_id

    @property
    def author(self) -> AgentAuthor:
        """The author of edits to core memory."""
        return AgentAuthor(self.agent_id, self.tool_call_id, self.run_id, self.holder_id)

    @property
    def holder_id(self) -> str | None:
        """The id of the conversation if it has isolated blocks, otherwise None."""
        return None if self.conversation is None else self.conversation.holder_id

    def is_isolated(self, label: str) -> bool:
        """Returns whether the conversation has its own copy of the block under `label`."""
        return self.conversation is not None and label in self.conversation.isolated_block_labels

    def base_revision(self, label: str) -> int | None:
        """Returns the revision of a block that the agent has seen; None outside of a turn, where no prompt shows it."""
        return None if self.seen_revisions is None else self.seen_revisions.of(label)

    def record_edit(self, label: str, revision: int, before: str | None = None) -> None:
        """Records the revision that the call created of the block under `label`, which was called `before`."""
        if self.seen_revisions is not None:
            self.seen_revisions.record_edit(label, revision, before)

    def effect(self, ordinal: int) -> str:
        """Returns the request id of the call's effect with this number."""
        return f"{self.effect_prefix}/{ordinal}"


@dataclass(frozen=True, slots=True)
class WithImages:
    """The result of a tool that shows images besides its text."""

    text: str
    images: tuple[ImagePart, ...]


class OptionalCalls(Protocol):
    """Calls services without which a turn continues; see OptionalServices."""

    async def call(self, call: Callable[[], Awaitable[T]], what: str) -> tuple[T | None, str]:
        """Returns the result, or None and a note for the model if the service is unavailable."""
        ...


class Refused(Exception):
    """The tool refuses the call. The text tells the model why."""
