"""Runs: the turns of agents, looked at, followed, cancelled and taken up again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal

from mnemesh.agents.v1 import runs_pb2, runs_service_pb2, runs_service_pb2_grpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.channels import Channel
from mnemesh_kit.errors import InvalidArgument

from mnemesh_client import run_stream
from mnemesh_client.inputs import Input, given, input_messages, new_request_id
from mnemesh_client.paging import Order, every, sort_order

RunStatusName = Literal["created", "running", "completed", "failed", "cancelled"]


class RunsClient:
    """`e.runs`. Errors: NotFound; FailedPrecondition RUN_ENDED."""

    def __init__(self, channel: Channel, patience: float) -> None:
        self.stub = runs_service_pb2_grpc.RunServiceStub(channel)
        self._patience = patience

    def send(
        self,
        agent_id: str,
        content: Input,
        *,
        conversation_id: str | None = None,
        config: runs_pb2.RunConfig | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[runs_pb2.RunEvent]:
        """Sends input to an agent and yields the events of the turn; see `Agent.send`."""
        request = runs_service_pb2.SendMessageRequest(
            request_id=request_id or new_request_id(),
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=input_messages(content),
            config=config,
        )
        return run_stream.send(self.stub, request, self._patience)

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
    ) -> AsyncIterator[runs_pb2.RunEvent]:
        """Answers the approval that an agent waits for, and yields the events of the turn; see `Agent.answer`."""
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
        config: runs_pb2.RunConfig | None = None,
        request_id: str | None = None,
    ) -> runs_pb2.Run:
        """The same in the background; follow it with `stream`."""
        request = runs_service_pb2.StartRunRequest(
            request_id=request_id or new_request_id(),
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=input_messages(content),
            config=config,
        )
        return (await self.stub.StartRun(request)).run

    def stream(self, run_id: str, *, starting_after: int = 0) -> AsyncIterator[runs_pb2.RunEvent]:
        """Replays the events of a run behind a sequence number, then follows it to its end."""
        return run_stream.attach(self.stub, run_id, starting_after, self._patience)

    async def get(self, run_id: str) -> runs_pb2.Run:
        """One run."""
        return (await self.stub.GetRun(runs_service_pb2.GetRunRequest(run_id=run_id))).run

    def list(
        self,
        *,
        agent_id: str | None = None,
        statuses: Sequence[RunStatusName] = (),
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[runs_pb2.Run]:
        """Runs, newest first unless `order` is "asc"."""
        criteria = runs_service_pb2.RunFilter(
            agent_ids=[agent_id] if agent_id else (),
            statuses=[runs_pb2.RunStatus.Value(f"RUN_STATUS_{name.upper()}") for name in statuses],
        )
        request = runs_service_pb2.ListRunsRequest(order=sort_order(order), filter=criteria)
        return every(self.stub.ListRuns, request, "runs", limit)

    def steps(self, run_id: str) -> AsyncIterator[runs_pb2.Step]:
        """The steps of a run, in order."""
        request = runs_service_pb2.ListStepsRequest(filter=runs_service_pb2.StepFilter(run_id=run_id))
        return every(self.stub.ListSteps, request, "steps")

    async def trace(self, step_id: str) -> runs_service_pb2.StepTrace:
        """What went to the model at a step and came back, as JSON texts. NotFound once it is not kept any more."""
        return (await self.stub.GetStepTrace(runs_service_pb2.GetStepTraceRequest(step_id=step_id))).trace

    async def judge(
        self, step_id: str, feedback: Literal["positive", "negative"] | None, tags: Sequence[str] = ()
    ) -> runs_pb2.Step:
        """Sets, or clears, a verdict on a step and its tags."""
        request = runs_service_pb2.SetStepFeedbackRequest(step_id=step_id, feedback=feedback, tags=tags)
        return (await self.stub.SetStepFeedback(request)).step

    async def cancel(
        self, *run_ids: str, agent_id: str | None = None, conversation_id: str | None = None
    ) -> dict[str, runs_service_pb2.CancelOutcome.ValueType]:
        """Cancels the given runs, or all of an agent or conversation; run id → what became of it."""
        if sum((bool(run_ids), agent_id is not None, conversation_id is not None)) != 1:
            raise InvalidArgument("Name runs, or an agent, or a conversation.", field="target")
        request = runs_service_pb2.CancelRunsRequest(
            **given(
                runs=runs_service_pb2.RunIds(run_ids=run_ids) if run_ids else None,
                agent_id=agent_id,
                conversation_id=conversation_id,
            )
        )
        return dict((await self.stub.CancelRuns(request)).outcomes)

    async def retry(self, run_id: str) -> runs_pb2.Run:
        """Takes the input of a failed run up again, as a new run in the background."""
        return (await self.stub.RetryRun(runs_service_pb2.RetryRunRequest(run_id=run_id))).run
