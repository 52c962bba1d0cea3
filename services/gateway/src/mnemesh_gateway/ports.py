"""Protocols of the services that the gateway calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from mnemesh_gateway.model.chat import ToolResult
from mnemesh_gateway.model.models import AgentInfo, EmbeddedTexts
from mnemesh_gateway.model.runs import Input, RunEvent, RunOptions, RunRecord
from mnemesh_gateway.model.sessions import Overlay
from mnemesh_gateway.model.tasks import Task


class AgentsPort(Protocol):
    """Agents of the current principal's organization."""

    async def get(self, agent_id: str) -> AgentInfo:
        """Returns an agent. Raises NotFound."""
        ...

    async def named(self, name: str) -> tuple[AgentInfo, ...]:
        """Returns the agents with a name; at most two."""
        ...

    def list(self) -> AsyncIterator[AgentInfo]:
        """Yields all agents that are not hidden, oldest first."""
        ...


class CallResult(NamedTuple):
    """The status of an answer, or the cause of the failure without one."""

    status: int | None
    error: str | None


class Caller(Protocol):
    """Calls URLs."""

    async def post(self, url: str, body: bytes) -> CallResult:
        """Sends JSON to a URL. Never raises."""
        ...


class EmbeddingsPort(Protocol):
    """Embedders, which are the same for all organizations."""

    async def embed(self, embedder: str, texts: Sequence[str]) -> EmbeddedTexts:
        """Returns the vectors of texts.

        Raises:
            UnknownEmbedder: There is no such embedder.
            InvalidRequest: A text is not valid, or there are too many. The error names `input` or `input[i]`.
            Unavailable: Archival or the embedder does not answer.
        """
        ...


class RunsPort(Protocol):
    """Runs of the current principal's organization. Streams survive broken connections and takeovers."""

    def send(
        self, agent_id: str, conversation_id: str, inputs: Sequence[Input], options: RunOptions
    ) -> AsyncIterator[RunEvent]:
        """Starts a run, or finds the one with these inputs, and yields its events. The first is Accepted.

        Raises:
            OtidReused: Some of the inputs were sent before. `run_id` of the metadata is their run.
            PendingApproval: The conversation waits for results of tools.
        """
        ...

    def answer(
        self,
        agent_id: str,
        conversation_id: str,
        results: Sequence[ToolResult],
        inputs: Sequence[Input],
        options: RunOptions,
    ) -> AsyncIterator[RunEvent]:
        """Continues a run with the results of the client's tools, and yields the events of the new run.

        Raises:
            NoPendingApproval: No call waits for these results.
            ApprovalMismatch: The results are not those of all calls that wait.
        """
        ...

    def follow(self, run_id: str) -> AsyncIterator[RunEvent]:
        """Yields the events of a run. The first is Accepted."""
        ...

    async def newest(self, conversation_id: str) -> RunRecord | None:
        """Returns the newest run of a conversation."""
        ...

    def recent(self, conversation_id: str, count: int) -> AsyncGenerator[RunRecord, None]:
        """Yields the newest runs of a conversation, newest first. Each is read alone: its images may be large."""
        ...

    def recent_of(self, agent_id: str, count: int) -> AsyncGenerator[RunRecord, None]:
        """Yields the newest runs of an agent, newest first, as `recent` does."""
        ...

    async def get(self, run_id: str) -> RunRecord:
        """Returns a run. Raises NotFound."""
        ...

    async def retry(self, run_id: str) -> str:
        """Starts a failed run again. Returns the id of the new run, or of a retry that exists."""
        ...

    async def cancel(self, conversation_id: str) -> None:
        """Cancels the runs of a conversation, and withdraws the calls that it waits for."""
        ...


class ConversationsPort(Protocol):
    """Conversations with a block of their own for the overlay."""

    async def open(self, agent_id: str, key: str) -> tuple[str, str]:
        """Returns the ids of the agent's conversation with this key and of its overlay block; creates what is missing.

        Raises:
            NotFound: The agent does not exist.
        """
        ...

    async def find(self, conversation_id: str) -> tuple[str, str | None]:
        """Returns the id of the agent of a conversation, and of its overlay block if it has one. Raises NotFound."""
        ...

    async def render_system_message(self, agent_id: str, conversation_id: str) -> None:
        """Updates the system message of a conversation to show the overlay."""
        ...


class OverlaysPort(Protocol):
    """The blocks of overlays."""

    async def sha256(self, block_id: str) -> str | None:
        """Returns the hash of the instructions in a block; None if it has none. Raises NotFound."""
        ...

    async def write(self, block_id: str, overlay: Overlay, session: str) -> None:
        """Stores instructions in a block that agents cannot edit, with a limit that fits them."""
        ...


class TaskAgentsPort(Protocol):
    """Hidden agents without memory and tools."""

    async def create(self, model: str, instructions: str | None) -> AgentInfo:
        """Returns a new agent with a language model and a system prompt."""
        ...

    def run(self, agent: AgentInfo, task: Task) -> AsyncIterator[RunEvent]:
        """Yields the events of the task's only run. The first is Accepted."""
        ...

    async def delete(self, agent_id: str) -> None:
        """Deletes an agent with everything that it stored."""
        ...

    async def abandoned(self) -> tuple[str, ...]:
        """Returns the ids of agents whose tasks ended without their deletion, because a process was killed."""
        ...
