"""The runs of the orchestrator."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from mnemesh_gateway.model.chat import ToolResult
from mnemesh_gateway.model.runs import RunEvent, RunRecord
from mnemesh_gateway.model.sending import Input, RunOptions


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
