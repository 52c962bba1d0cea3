"""Runs that a run starts: messages to other agents, and the turns of a group."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from mnemesh_orchestrator.model.events import MemberEvent
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.run_config import RunConfig
from mnemesh_orchestrator.model.runs import ChildRun, Run, RunOrigin


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

    async def answering_run(self, asking: Run) -> str | None:
        """Waits until the approval for which a run stopped is answered. Returns the id of the run that answers it.

        Returns None if no one can answer it any more.
        """
        ...

    async def withdraw(self, parent: Run, run_id: str) -> bool:
        """Cancels a run that has not begun. Returns False, and changes nothing, if it has. Raises NotFound."""
        ...

    async def children(self, parent: Run) -> tuple[ChildRun, ...]:
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
