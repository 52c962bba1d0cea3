"""The port that makes room in a window, and the adapter that refuses to."""

from dataclasses import dataclass
from typing import Protocol

from engram_orchestrator.errors import ContextWindowOverflow, SystemPromptOverflow
from engram_orchestrator.model.agents import Agent
from engram_orchestrator.model.memory import Window
from engram_orchestrator.model.runs import Lease


@dataclass(frozen=True, slots=True)
class Overflow:
    """A request that does not fit: what it would cost, and what there is."""

    window: Window
    tokens: int
    limit: int
    system_tokens: int


class Compactor(Protocol):
    """Makes room before a request."""

    async def make_room(self, agent: Agent, lease: Lease, overflow: Overflow) -> Window:
        """The smaller window, stored.

        Raises:
            SystemPromptOverflow: the system prompt and the tools alone do not fit.
            ContextWindowOverflow: nothing more can be taken away.
        """
        ...


class RefusingCompactor:
    """Takes nothing away: a window that would overflow stops the run with the figures, and stays as it is."""

    async def make_room(self, agent: Agent, lease: Lease, overflow: Overflow) -> Window:
        """See Compactor."""
        del agent, lease
        figures = {"tokens": str(overflow.tokens), "limit": str(overflow.limit)}
        if overflow.system_tokens > overflow.limit:
            raise SystemPromptOverflow(
                f"The system prompt and tools take about {overflow.system_tokens} tokens; "
                f"the model's window leaves {overflow.limit}.",
                tokens=str(overflow.system_tokens),
                limit=figures["limit"],
            )
        raise ContextWindowOverflow(
            f"The next request would take about {overflow.tokens} tokens; the model's window leaves "
            f"{overflow.limit}. Reset the conversation or give the agent a larger context_window.",
            **figures,
        )
