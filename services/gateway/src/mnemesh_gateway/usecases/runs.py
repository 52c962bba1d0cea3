"""Runs of the mesh: what a chat request becomes, its stream of events, and the runs that exist."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import grpc
from mnemesh.agents.v1 import runs_pb2
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.agents.v1.runs_service_pb2_grpc import RunServiceStub
from mnemesh.types.v1.message_pb2 import ApprovalDecision, ToolCall
from mnemesh_client import runs
from mnemesh_kit.errors import FailedPrecondition
from mnemesh_kit.ids import new_id

READ: Final = 5.0
WRITE: Final = 10.0
ACCEPTANCE: Final = 5.0
"""The time in seconds after which a message that the orchestrator has not accepted is not sent again."""
PATIENCE: Final = 60.0
"""The time in seconds for which a broken stream is retried without an event."""
KEEPALIVE_SECONDS: Final = 15
_EVENTS: Final = (
    runs_pb2.EVENT_KIND_ASSISTANT_MESSAGE,
    runs_pb2.EVENT_KIND_REASONING_MESSAGE,
    runs_pb2.EVENT_KIND_APPROVAL_REQUEST_MESSAGE,
)
_FAILED: Final = (runs_pb2.RUN_STATUS_FAILED, runs_pb2.RUN_STATUS_CANCELLED)

Events = AsyncGenerator[runs_pb2.RunEvent, None]


def config_of(request: runs_pb2.RunConfig, metadata: Mapping[str, Any]) -> runs_pb2.RunConfig:
    """Returns the configuration of a run: that of a request, with what the gateway reads of its events."""
    config = runs_pb2.RunConfig(include_events=_EVENTS, keepalive_seconds=KEEPALIVE_SECONDS)
    config.MergeFrom(request)
    if metadata:
        config.metadata = json.dumps(metadata)
    return config


def has_ended(run: runs_pb2.Run) -> bool:
    return run.status == runs_pb2.RUN_STATUS_COMPLETED or run.status in _FAILED


def has_failed(run: runs_pb2.Run) -> bool:
    """Returns whether a run failed or was cancelled."""
    return run.status in _FAILED


def metadata_of(run: runs_pb2.Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.config.metadata) if run.config.HasField("metadata") else {}
    return found


def is_replay(event: runs_pb2.RunEvent) -> bool:
    """Returns whether an event says that an earlier request started the run."""
    return event.accepted.replayed


def waiting_calls(event: runs_pb2.RunEvent) -> Sequence[ToolCall]:
    """Returns the calls about which someone decides, if an event asks for it. Those of other agents are left out."""
    return () if event.agent_id else event.message.approval_request.tool_calls


class RunsClient:
    """Runs of the current principal's organization. Streams survive broken connections and takeovers."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = RunServiceStub(channel)

    def send(
        self,
        agent_id: str,
        conversation_id: str | None,
        messages: Sequence[runs_pb2.InputMessage],
        config: runs_pb2.RunConfig,
    ) -> Events:
        """Starts a run, or finds the one with these messages, and yields its events. The first is `accepted`.

        Raises:
            OtidReused: some of the messages were sent before. `run_id` of the metadata is their run.
            PendingApproval: the conversation waits for results of tools.
        """
        request = rpc.SendMessageRequest(
            request_id=new_id("gateway"),
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=messages,
            config=config,
        )
        # Without tokens, nothing is shown before the end, and one response costs less than a stream.
        send = runs.send if config.stream_tokens else runs.send_and_wait
        return send(self._stub, request, PATIENCE, ACCEPTANCE)

    def answer(
        self,
        agent_id: str,
        conversation_id: str,
        results: Sequence[ApprovalDecision],
        messages: Sequence[runs_pb2.InputMessage],
        config: runs_pb2.RunConfig,
    ) -> Events:
        """Continues a run with the results of the client's tools, and yields the events of the new run.

        Raises:
            NoPendingApproval: no call waits for these results.
            ApprovalMismatch: the results are not those of all calls that wait.
        """
        request = rpc.AnswerApprovalRequest(
            request_id=new_id("gateway"),
            agent_id=agent_id,
            conversation_id=conversation_id,
            decisions=results,
            messages=messages,
            config=config,
        )
        return runs.send(self._stub, request, PATIENCE, ACCEPTANCE)

    def follow(self, run_id: str) -> Events:
        """Yields the events of a run. The first is `accepted`."""
        return runs.attach(self._stub, run_id, 0, PATIENCE)

    async def newest(self, conversation_id: str) -> runs_pb2.Run | None:
        async with aclosing(self.recent(rpc.RunFilter(conversation_id=conversation_id), 1)) as found:
            return await anext(found, None)

    async def recent(self, filter_: rpc.RunFilter, count: int) -> AsyncGenerator[runs_pb2.Run, None]:
        """Yields runs, newest first. Each is read alone: its images may be large."""
        request = rpc.ListRunsRequest(page_size=1, filter=filter_)
        for _ in range(count):
            response = await self._stub.ListRuns(request, timeout=READ)
            for run in response.runs:
                yield run
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    async def get(self, run_id: str) -> runs_pb2.Run:
        """Returns a run. Raises NotFound."""
        return (await self._stub.GetRun(rpc.GetRunRequest(run_id=run_id), timeout=READ)).run

    async def retry(self, run_id: str) -> str:
        """Starts a failed run again. Returns the id of the new run, or of a retry that exists."""
        try:
            response = await self._stub.RetryRun(rpc.RetryRunRequest(run_id=run_id), timeout=WRITE)
        except FailedPrecondition as error:
            # A retry runs or has completed. Its id is in the metadata.
            existing = error.metadata.get("resource_id")
            if existing is None:
                raise
            return existing
        return str(response.run.id)

    async def cancel(self, conversation_id: str) -> None:
        """Cancels the runs of a conversation, and withdraws the calls that it waits for."""
        await self._stub.CancelRuns(rpc.CancelRunsRequest(conversation_id=conversation_id), timeout=WRITE)
