"""mnemesh.agents.v1.RunService."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from mnemesh.agents.v1 import runs_pb2, runs_service_pb2_grpc
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument, Unimplemented
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import next_page_token, page_query
from mnemesh_kit.principal import current_principal

from mnemesh_orchestrator.model.events import RunEvent
from mnemesh_orchestrator.model.runs import RunFilter
from mnemesh_orchestrator.rpc.convert.approvals import answer_from_proto
from mnemesh_orchestrator.rpc.convert.events import event_to_proto, wanted
from mnemesh_orchestrator.rpc.convert.runs import (
    CANCEL_OUTCOMES,
    config_from_proto,
    conversation_from,
    inputs_from_proto,
    named_conversation,
    run_filter_from_proto,
    run_to_proto,
)
from mnemesh_orchestrator.rpc.convert.steps import (
    require_feedback,
    step_filter_from_proto,
    step_tags,
    step_to_proto,
    trace_to_proto,
)
from mnemesh_orchestrator.usecases.approvals import ApprovalService
from mnemesh_orchestrator.usecases.runs import RunService
from mnemesh_orchestrator.usecases.steps import StepService

Context = grpc.aio.ServicerContext[Any, Any]


class RunsServicer(runs_service_pb2_grpc.RunServiceServicer):
    """Turns of agents."""

    def __init__(self, service: RunService, approvals: ApprovalService, steps: StepService) -> None:
        self._service = service
        self._approvals = approvals
        self._steps = steps

    async def SendMessage(
        self, request: rpc.SendMessageRequest, context: Context
    ) -> AsyncIterator[rpc.SendMessageResponse]:
        """Sends input and streams the turn."""
        agent_id, conversation_id = _addressed(request)
        config = config_from_proto(request.config)
        events = self._service.send(
            current_principal(),
            request_key(request, "SendMessage"),
            agent_id,
            conversation_id,
            inputs_from_proto(request.messages),
            config,
        )
        async for event in events:
            if wanted(event, config.include_events):
                yield rpc.SendMessageResponse(event=await _leaving(event))

    async def StartRun(self, request: rpc.StartRunRequest, context: Context) -> rpc.StartRunResponse:
        """The same in the background."""
        agent_id, conversation_id = _addressed(request)
        run = await self._service.start(
            current_principal(),
            request_key(request, "StartRun"),
            agent_id,
            conversation_id,
            inputs_from_proto(request.messages),
            config_from_proto(request.config),
        )
        return rpc.StartRunResponse(run=run_to_proto(run))

    async def AnswerApproval(
        self, request: rpc.AnswerApprovalRequest, context: Context
    ) -> AsyncIterator[rpc.AnswerApprovalResponse]:
        """Answers an approval and streams the turn on."""
        agent_id = require_id(request.agent_id, "agent", "agent_id")
        config = config_from_proto(request.config) if request.HasField("config") else None
        run, events = await self._approvals.answer(
            current_principal(),
            request_key(request, "AnswerApproval"),
            agent_id,
            conversation_from(agent_id, request.conversation_id if request.HasField("conversation_id") else None),
            answer_from_proto(request, config),
            inputs_from_proto(request.messages, any_number=True),
        )
        async with aclosing(events):
            async for event in events:
                if wanted(event, run.config.include_events):
                    yield rpc.AnswerApprovalResponse(event=await _leaving(event))

    async def GetRun(self, request: rpc.GetRunRequest, context: Context) -> rpc.GetRunResponse:
        """A run."""
        run = await self._service.get(current_principal(), require_id(request.run_id, "run", "run_id"))
        return rpc.GetRunResponse(run=run_to_proto(run))

    async def ListRuns(self, request: rpc.ListRunsRequest, context: Context) -> rpc.ListRunsResponse:
        """A page of runs."""
        query = page_query(request, default_ascending=False)
        page = await self._service.list(current_principal(), run_filter_from_proto(request.filter), query)
        runs = [run_to_proto(run) for run in page.items]
        return rpc.ListRunsResponse(runs=runs, next_page_token=next_page_token(query, page))

    async def CancelRuns(self, request: rpc.CancelRunsRequest, context: Context) -> rpc.CancelRunsResponse:
        """Cancels what is under way and what waits."""
        run_ids: list[str] = []
        where = RunFilter()
        match request.WhichOneof("target"):
            case "runs":
                run_ids = [require_id(run_id, "run", "runs.run_ids") for run_id in request.runs.run_ids]
                if not run_ids:
                    raise InvalidArgument("runs.run_ids is empty.", field="runs.run_ids")
            case "conversation_id":
                where = RunFilter(conversation_id=named_conversation(request.conversation_id))
            case "agent_id":
                where = RunFilter(agent_ids=(require_id(request.agent_id, "agent", "agent_id"),))
            case _:
                raise InvalidArgument("One of runs, conversation_id and agent_id is required.", field="target")
        outcomes = await self._approvals.cancel(current_principal(), where, run_ids)
        return rpc.CancelRunsResponse(outcomes={run: CANCEL_OUTCOMES[outcome] for run, outcome in outcomes.items()})

    async def RetryRun(self, request: rpc.RetryRunRequest, context: Context) -> rpc.RetryRunResponse:
        """Takes the input of a failed run up again."""
        run_id = require_id(request.run_id, "run", "run_id")
        run = await self._service.retry(current_principal(), request_key(request, "RetryRun"), run_id)
        return rpc.RetryRunResponse(run=run_to_proto(run))

    async def DeleteRun(self, request: rpc.DeleteRunRequest, context: Context) -> rpc.DeleteRunResponse:
        """Deletes the record of an ended run."""
        await self._service.delete(current_principal(), require_id(request.run_id, "run", "run_id"))
        return rpc.DeleteRunResponse()

    async def StreamRun(self, request: rpc.StreamRunRequest, context: Context) -> AsyncIterator[rpc.StreamRunResponse]:
        """Replays, then follows."""
        if request.starting_after < 0:
            raise InvalidArgument("starting_after must not be negative.", field="starting_after")
        keepalive = request.keepalive_seconds if request.HasField("keepalive_seconds") else 30
        if keepalive < 1:
            raise InvalidArgument("keepalive_seconds must be positive.", field="keepalive_seconds")
        run_id = require_id(request.run_id, "run", "run_id")
        run, events = await self._service.attach(
            current_principal(), run_id, request.starting_after, keepalive, deltas=request.include_deltas
        )
        async with aclosing(events):
            async for event in events:
                if wanted(event, run.config.include_events):
                    yield rpc.StreamRunResponse(event=await _leaving(event))

    async def ListSteps(self, request: rpc.ListStepsRequest, context: Context) -> rpc.ListStepsResponse:
        """A page of finished steps."""
        query = page_query(request)
        page = await self._steps.list(current_principal(), step_filter_from_proto(request.filter), query)
        steps = [step_to_proto(step) for step in page.items]
        return rpc.ListStepsResponse(steps=steps, next_page_token=next_page_token(query, page))

    async def GetStep(self, request: rpc.GetStepRequest, context: Context) -> rpc.GetStepResponse:
        """A finished step."""
        step = await self._steps.get(current_principal(), require_id(request.step_id, "step", "step_id"))
        return rpc.GetStepResponse(step=step_to_proto(step))

    async def GetStepTrace(self, request: rpc.GetStepTraceRequest, context: Context) -> rpc.GetStepTraceResponse:
        """What went to the model and came back."""
        trace = await self._steps.trace(current_principal(), require_id(request.step_id, "step", "step_id"))
        return rpc.GetStepTraceResponse(trace=trace_to_proto(trace))

    async def SetStepFeedback(
        self, request: rpc.SetStepFeedbackRequest, context: Context
    ) -> rpc.SetStepFeedbackResponse:
        """A person's verdict on a step."""
        step = await self._steps.judge(
            current_principal(),
            request_key(request, "SetStepFeedback"),
            require_id(request.step_id, "step", "step_id"),
            require_feedback(request.feedback, "feedback") if request.HasField("feedback") else None,
            step_tags(request.tags, "tags"),
        )
        return rpc.SetStepFeedbackResponse(step=step_to_proto(step))


async def _leaving(event: RunEvent) -> runs_pb2.RunEvent:
    message = event_to_proto(event)
    if message.HasField("sequence"):
        await async_failpoint("run.before_event", message.WhichOneof("event") or "")
    return message


def _addressed(request: rpc.SendMessageRequest | rpc.StartRunRequest) -> tuple[str, str]:
    """Agent and conversation that a request goes to."""
    if request.HasField("group_id"):
        raise Unimplemented("This server does not answer groups yet.", field="group_id")
    agent_id = require_id(request.agent_id, "agent", "agent_id")
    given = request.conversation_id if request.HasField("conversation_id") else None
    return agent_id, conversation_from(agent_id, given)
