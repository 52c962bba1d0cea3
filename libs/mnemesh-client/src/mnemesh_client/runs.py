"""Runs: send, start, stream, list, cancel and retry the turns of agents and the runs of groups."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Literal

from mnemesh.agents.v1 import batches_pb2, runs_pb2, runs_service_pb2, runs_service_pb2_grpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument

from mnemesh_client import run_stream
from mnemesh_client.inputs import Input, input_messages, new_request_id, present_fields
from mnemesh_client.paging import Order, paginate, sort_order
from mnemesh_client.transport import Channel, closing

RunStatusName = Literal["created", "running", "completed", "failed", "cancelled"]
RunOriginName = Literal["client", "group", "agent", "sleeptime"]


class RunsClient:
    """Calls of RunService, as `client.runs`. Errors: NotFound; FailedPrecondition RUN_ENDED."""

    def __init__(self, channel: Channel, patience: float) -> None:
        self.stub = runs_service_pb2_grpc.RunServiceStub(channel)
        self._patience = patience

    def send(
        self,
        agent_id: str,
        content: Input,
        *,
        conversation_id: str | None = None,
        group_id: str | None = None,
        config: runs_pb2.RunConfig | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[runs_pb2.RunEvent]:
        """Sends input to an agent, or to a group if `agent_id` is empty, and yields the events of the run.

        See `Agent.send` and `Group.send`.
        """
        request = runs_service_pb2.SendMessageRequest(
            request_id=request_id or new_request_id(),
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=input_messages(content),
            config=config,
            group_id=group_id,
        )
        return run_stream.send(self.stub, request, self._patience)

    def send_and_wait(
        self,
        agent_id: str,
        content: Input,
        *,
        conversation_id: str | None = None,
        config: runs_pb2.RunConfig | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[runs_pb2.RunEvent]:
        """Sends input to an agent, and yields the events of the run when it has ended: cheaper than `send`."""
        request = runs_service_pb2.SendMessageRequest(
            request_id=request_id or new_request_id(),
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=input_messages(content),
            config=config,
        )
        return run_stream.send_and_wait(self.stub, request, self._patience)

    def answer(
        self,
        agent_id: str,
        decisions: Sequence[message_pb2.ApprovalDecision],
        *,
        content: Input = (),
        approval_request_id: str | None = None,
        conversation_id: str | None = None,
        config: runs_pb2.RunConfig | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[runs_pb2.RunEvent, None]:
        """Answers the pending approval request of an agent, and yields the events of the turn. See `Agent.answer`."""
        request = runs_service_pb2.AnswerApprovalRequest(
            request_id=request_id or new_request_id(),
            agent_id=agent_id,
            conversation_id=conversation_id,
            approval_request_id=approval_request_id,
            decisions=decisions,
            messages=input_messages(content),
            config=config,
        )
        return run_stream.send(self.stub, request, self._patience)

    async def start(
        self,
        agent_id: str,
        content: Input,
        *,
        conversation_id: str | None = None,
        group_id: str | None = None,
        config: runs_pb2.RunConfig | None = None,
        request_id: str | None = None,
    ) -> runs_pb2.Run:
        """Starts a run of an agent, or of a group if `agent_id` is empty, in the background, and returns it.

        Follow it with `stream` or `wait`.
        """
        request = runs_service_pb2.StartRunRequest(
            request_id=request_id or new_request_id(),
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=input_messages(content),
            config=config,
            group_id=group_id,
        )
        return (await self.stub.StartRun(request)).run

    def stream(self, run_id: str, *, starting_after: int = 0) -> AsyncIterator[runs_pb2.RunEvent]:
        """Yields the events of a run after a sequence number, and follows it to its end."""
        return run_stream.attach(self.stub, run_id, starting_after, self._patience)

    async def get(self, run_id: str) -> runs_pb2.Run:
        """Returns a run."""
        return (await self.stub.GetRun(runs_service_pb2.GetRunRequest(run_id=run_id))).run

    async def wait(self, run_id: str) -> runs_pb2.Run:
        """Waits until a run has ended, and returns it."""
        run = await self.get(run_id)
        async with closing(run_stream.attach(self.stub, run_id, run.last_sequence, self._patience)) as events:
            async for _ in events:
                pass
        return await self.get(run_id)

    def children(self, run_id: str, *, order: Order | None = "asc") -> AsyncIterator[runs_pb2.Run]:
        """Yields the runs that a run started: turns of a group, messages to other agents, runs of sleeptime agents."""
        return self.list(parent_run_id=run_id, order=order)

    def list(
        self,
        *,
        agent_id: str | None = None,
        group_id: str | None = None,
        parent_run_id: str | None = None,
        batch_id: str | None = None,
        origins: Sequence[RunOriginName] = (),
        statuses: Sequence[RunStatusName] = (),
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[runs_pb2.Run]:
        """Yields the runs that match all arguments, newest first unless `order` is "asc".

        Args:
            agent_id: only runs of this agent.
            group_id: only runs of this group, and the turns of its agents in them.
            parent_run_id: only runs that this run started.
            batch_id: only runs of this batch.
            origins: only runs that were started by a client, a group, a tool call of an agent, or sleeptime.
            statuses: only runs with one of these statuses.
            order: "asc" or "desc", by the time at which they were sent.
            limit: the maximum number of runs; None yields all.
        """
        criteria = runs_service_pb2.RunFilter(
            agent_ids=[agent_id] if agent_id else (),
            group_id=group_id,
            parent_run_id=parent_run_id,
            batch_id=batch_id,
            origins=[runs_pb2.RunOrigin.Value(f"RUN_ORIGIN_{name.upper()}") for name in origins],
            statuses=[runs_pb2.RunStatus.Value(f"RUN_STATUS_{name.upper()}") for name in statuses],
        )
        request = runs_service_pb2.ListRunsRequest(order=sort_order(order), filter=criteria)
        return paginate(self.stub.ListRuns, request, "runs", limit)

    def steps(self, run_id: str) -> AsyncIterator[runs_pb2.Step]:
        """Yields the steps of a run, in order."""
        request = runs_service_pb2.ListStepsRequest(filter=runs_service_pb2.StepFilter(run_id=run_id))
        return paginate(self.stub.ListSteps, request, "steps")

    async def step(self, step_id: str) -> runs_pb2.Step:
        """Returns a step."""
        return (await self.stub.GetStep(runs_service_pb2.GetStepRequest(step_id=step_id))).step

    async def trace(self, step_id: str) -> runs_service_pb2.StepTrace:
        """Returns the model's request and response at a step, as JSON. Raises NotFound once they expired."""
        return (await self.stub.GetStepTrace(runs_service_pb2.GetStepTraceRequest(step_id=step_id))).trace

    async def judge(
        self, step_id: str, feedback: Literal["positive", "negative"] | None, tags: Sequence[str] = ()
    ) -> runs_pb2.Step:
        """Sets the feedback on a step and its tags. None clears the feedback."""
        request = runs_service_pb2.SetStepFeedbackRequest(step_id=step_id, feedback=feedback, tags=tags)
        return (await self.stub.SetStepFeedback(request)).step

    async def start_batch(
        self,
        requests: Sequence[runs_service_pb2.BatchRequest],
        *,
        callback_url: str | None = None,
        request_id: str | None = None,
    ) -> batches_pb2.Batch:
        """Starts background runs together, all or none, and returns the batch. `list` with its id yields the runs."""
        request = runs_service_pb2.StartBatchRequest(
            request_id=request_id or new_request_id(), requests=requests, callback_url=callback_url
        )
        return (await self.stub.StartBatch(request)).batch

    async def batch(self, batch_id: str) -> batches_pb2.Batch:
        """Returns a batch with the numbers of its runs by status."""
        return (await self.stub.GetBatch(runs_service_pb2.GetBatchRequest(batch_id=batch_id))).batch

    def batches(self, *, order: Order | None = None, limit: int | None = None) -> AsyncIterator[batches_pb2.Batch]:
        """Yields batches, newest first unless `order` is "asc"."""
        request = runs_service_pb2.ListBatchesRequest(order=sort_order(order))
        return paginate(self.stub.ListBatches, request, "batches", limit)

    async def cancel_batch(self, batch_id: str) -> batches_pb2.Batch:
        """Cancels the runs of a batch that have not ended, and returns the batch."""
        return (await self.stub.CancelBatch(runs_service_pb2.CancelBatchRequest(batch_id=batch_id))).batch

    async def cancel(
        self,
        *run_ids: str,
        agent_id: str | None = None,
        conversation_id: str | None = None,
        group_id: str | None = None,
    ) -> dict[str, runs_service_pb2.CancelOutcome.ValueType]:
        """Cancels runs by id, or all runs of an agent, a conversation or a group. Returns the outcome by run id."""
        if sum((bool(run_ids), agent_id is not None, conversation_id is not None, group_id is not None)) != 1:
            raise InvalidArgument("Set exactly one of run ids, agent_id, conversation_id and group_id.", field="target")
        request = runs_service_pb2.CancelRunsRequest(
            **present_fields(
                runs=runs_service_pb2.RunIds(run_ids=run_ids) if run_ids else None,
                agent_id=agent_id,
                conversation_id=conversation_id,
                group_id=group_id,
            )
        )
        return dict((await self.stub.CancelRuns(request)).outcomes)

    async def retry(self, run_id: str) -> runs_pb2.Run:
        """Starts a new run in the background with the input of a failed run."""
        return (await self.stub.RetryRun(runs_service_pb2.RetryRunRequest(run_id=run_id))).run

    async def delete(self, run_id: str) -> None:
        """Deletes the record of a run that has ended, with its steps and events. Its messages stay in recall."""
        await self.stub.DeleteRun(runs_service_pb2.DeleteRunRequest(run_id=run_id))
