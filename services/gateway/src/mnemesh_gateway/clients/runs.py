"""The runs of the orchestrator over gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

import grpc
from mnemesh.agents.v1 import runs_pb2
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.agents.v1.runs_service_pb2_grpc import RunServiceStub
from mnemesh_client import run_stream
from mnemesh_kit.errors import FailedPrecondition
from mnemesh_kit.ids import new_id

from mnemesh_gateway.clients import deadlines
from mnemesh_gateway.clients.convert import (
    config_to_proto,
    decision_to_proto,
    event_from_proto,
    input_to_proto,
    record_from_proto,
)
from mnemesh_gateway.model.chat import ToolResult
from mnemesh_gateway.model.runs import RunEvent, RunRecord
from mnemesh_gateway.model.sending import Input, RunOptions


class RunsClient:
    """RunsPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = RunServiceStub(channel)

    async def send(
        self, agent_id: str, conversation_id: str, inputs: Sequence[Input], options: RunOptions
    ) -> AsyncIterator[RunEvent]:
        """See RunsPort."""
        request = rpc.SendMessageRequest(
            request_id=new_id("gateway"),
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=[input_to_proto(item) for item in inputs],
            config=config_to_proto(options),
        )
        # Without tokens, nothing is shown before the end, and one response costs less than a stream.
        send = run_stream.send if options.stream_tokens else run_stream.send_and_wait
        async for event in converted(send(self._stub, request, deadlines.PATIENCE, deadlines.ACCEPTANCE)):
            yield event

    async def answer(
        self,
        agent_id: str,
        conversation_id: str,
        results: Sequence[ToolResult],
        inputs: Sequence[Input],
        options: RunOptions,
    ) -> AsyncIterator[RunEvent]:
        """See RunsPort."""
        request = rpc.AnswerApprovalRequest(
            request_id=new_id("gateway"),
            agent_id=agent_id,
            conversation_id=conversation_id,
            decisions=[decision_to_proto(result) for result in results],
            messages=[input_to_proto(item) for item in inputs],
            config=config_to_proto(options),
        )
        async for event in converted(run_stream.send(self._stub, request, deadlines.PATIENCE, deadlines.ACCEPTANCE)):
            yield event

    async def follow(self, run_id: str) -> AsyncIterator[RunEvent]:
        """See RunsPort."""
        async for event in converted(run_stream.attach(self._stub, run_id, 0, deadlines.PATIENCE)):
            yield event

    async def newest(self, conversation_id: str) -> RunRecord | None:
        """See RunsPort."""
        async with aclosing(self.recent(conversation_id, 1)) as runs:
            return await anext(runs, None)

    def recent(self, conversation_id: str, count: int) -> AsyncGenerator[RunRecord, None]:
        """See RunsPort."""
        return self._newest(rpc.RunFilter(conversation_id=conversation_id), count)

    def recent_of(self, agent_id: str, count: int) -> AsyncGenerator[RunRecord, None]:
        """See RunsPort."""
        return self._newest(rpc.RunFilter(agent_ids=[agent_id]), count)

    async def _newest(self, filter_: rpc.RunFilter, count: int) -> AsyncGenerator[RunRecord, None]:
        request = rpc.ListRunsRequest(page_size=1, filter=filter_)
        for _ in range(count):
            response = await self._stub.ListRuns(request, timeout=deadlines.READ)
            for run in response.runs:
                yield record_from_proto(run)
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    async def get(self, run_id: str) -> RunRecord:
        """See RunsPort."""
        response = await self._stub.GetRun(rpc.GetRunRequest(run_id=run_id), timeout=deadlines.READ)
        return record_from_proto(response.run)

    async def retry(self, run_id: str) -> str:
        """See RunsPort."""
        try:
            response = await self._stub.RetryRun(rpc.RetryRunRequest(run_id=run_id), timeout=deadlines.WRITE)
        except FailedPrecondition as error:
            # A retry runs or has completed. Its id is in the metadata.
            existing = error.metadata.get("resource_id")
            if existing is None:
                raise
            return existing
        return str(response.run.id)

    async def cancel(self, conversation_id: str) -> None:
        """See RunsPort."""
        request = rpc.CancelRunsRequest(conversation_id=conversation_id)
        await self._stub.CancelRuns(request, timeout=deadlines.WRITE)


async def converted(events: AsyncGenerator[runs_pb2.RunEvent, None]) -> AsyncIterator[RunEvent]:
    """Yields the events of messages that the gateway uses."""
    try:
        async for message in events:
            event = event_from_proto(message)
            if event is not None:
                yield event
    finally:
        await events.aclose()
