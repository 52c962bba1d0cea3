"""`mnemesh.agents.v1.RunService`."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final

import grpc
from mnemesh.agents.v1 import runs_pb2, runs_service_pb2_grpc
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import MAX_PAGE_BYTES, bounded, next_page_token, page_query
from mnemesh_types.twin import optional_field

from mnemesh_orchestrator.model.events import RunEvent
from mnemesh_orchestrator.model.inputs import RunConfig
from mnemesh_orchestrator.rpc.convert.runs import (
    STEP,
    TRACE,
    answer_from_proto,
    batch_requests_from_proto,
    batch_to_proto,
    cancel_target_from_proto,
    config_from_proto,
    conversation_id_from_proto,
    due_callback_to_proto,
    event_to_proto,
    inputs_from_proto,
    outcomes_to_proto,
    run_filter_from_proto,
    run_request_from_proto,
    run_to_proto,
    step_filter_from_proto,
)
from mnemesh_orchestrator.usecases.approvals import ApprovalService
from mnemesh_orchestrator.usecases.batches import BatchService, CallbackService
from mnemesh_orchestrator.usecases.runs import RunService, StepService

Context = grpc.aio.ServicerContext[Any, Any]

_SENDING: Final = "SendMessage"
"""The operation of SendMessage, SendMessageAndWait and StartRun. Their requests have the same fields, so the same id is
the same run."""

_Sending = rpc.SendMessageRequest | rpc.SendMessageAndWaitRequest


class BatchRpcs(runs_service_pb2_grpc.RunServiceServicer):
    """The RPCs of RunService that concern batches and callbacks."""

    def __init__(self, batches: BatchService, callbacks: CallbackService) -> None:
        self._batches = batches
        self._callbacks = callbacks

    async def StartBatch(self, request: rpc.StartBatchRequest, context: Context) -> rpc.StartBatchResponse:
        """Starts background runs together."""
        key, requests = request_key(request, "StartBatch"), batch_requests_from_proto(request)
        url = optional_field(request, "callback_url")
        batch = await self._batches.start(current_principal(), key, requests, url)
        return rpc.StartBatchResponse(batch=batch_to_proto(batch))

    async def GetBatch(self, request: rpc.GetBatchRequest, context: Context) -> rpc.GetBatchResponse:
        batch = await self._batches.get(current_principal(), _batch_id(request.batch_id))
        return rpc.GetBatchResponse(batch=batch_to_proto(batch))

    async def ListBatches(self, request: rpc.ListBatchesRequest, context: Context) -> rpc.ListBatchesResponse:
        """Returns a page of batches."""
        query = page_query(request, default_ascending=False)
        found = await self._batches.list(current_principal(), query)
        page = bounded(query, found.map(batch_to_proto))
        return rpc.ListBatchesResponse(batches=page.items, next_page_token=next_page_token(query, page))

    async def CancelBatch(self, request: rpc.CancelBatchRequest, context: Context) -> rpc.CancelBatchResponse:
        """Cancels the runs of a batch that have not ended."""
        batch = await self._batches.cancel(current_principal(), _batch_id(request.batch_id))
        return rpc.CancelBatchResponse(batch=batch_to_proto(batch))

    async def ClaimCallbacks(self, request: rpc.ClaimCallbacksRequest, context: Context) -> rpc.ClaimCallbacksResponse:
        """Returns callbacks that are due."""
        claimed = await self._callbacks.claim(request.max_callbacks)
        return rpc.ClaimCallbacksResponse(callbacks=[due_callback_to_proto(*item) for item in claimed])

    async def RecordCallback(self, request: rpc.RecordCallbackRequest, context: Context) -> rpc.RecordCallbackResponse:
        """Stores the result of a call."""
        await self._callbacks.record(
            request.organization_id,
            request.target_id,
            request.attempt,
            status=optional_field(request, "status"),
            error=optional_field(request, "error"),
        )
        return rpc.RecordCallbackResponse()


def _batch_id(value: str) -> str:
    return require_id(value, "batch", "batch_id")


class RunsServicer(BatchRpcs, runs_service_pb2_grpc.RunServiceServicer):
    """Serves runs, approvals, steps, batches and callbacks."""

    def __init__(
        self,
        service: RunService,
        approvals: ApprovalService,
        steps: StepService,
        batches: BatchService,
        callbacks: CallbackService,
    ) -> None:
        super().__init__(batches, callbacks)
        self._service = service
        self._approvals = approvals
        self._steps = steps

    async def SendMessage(
        self, request: rpc.SendMessageRequest, context: Context
    ) -> AsyncIterator[rpc.SendMessageResponse]:
        together = _comes_together(request)
        async with aclosing(self._send(request)) as stream:
            async for events in stream:
                for response in _responses(rpc.SendMessageResponse, await _events_to_proto(events), together=together):
                    yield response

    async def SendMessageAndWait(
        self, request: rpc.SendMessageAndWaitRequest, context: Context
    ) -> rpc.SendMessageAndWaitResponse:
        found: list[runs_pb2.RunEvent] = []
        size = 0
        async with aclosing(self._send(request)) as stream:
            async for events in stream:
                for message in await _events_to_proto(event for event in events if not event.is_transient):
                    size += message.ByteSize()
                    if size > MAX_PAGE_BYTES and found:
                        return rpc.SendMessageAndWaitResponse(events=found)
                    found.append(message)
        return rpc.SendMessageAndWaitResponse(events=found)

    async def StartRun(self, request: rpc.StartRunRequest, context: Context) -> rpc.StartRunResponse:
        wanted, key = run_request_from_proto(request), request_key(request, _SENDING)
        run = await self._service.start(current_principal(), key, wanted)
        return rpc.StartRunResponse(run=run_to_proto(run))

    async def AnswerApproval(
        self, request: rpc.AnswerApprovalRequest, context: Context
    ) -> AsyncIterator[rpc.AnswerApprovalResponse]:
        together = _comes_together(request)
        agent_id = require_id(request.agent_id, "agent", "agent_id")
        config: RunConfig | None = config_from_proto(request.config) if request.HasField("config") else None
        run, stream = await self._approvals.answer(
            current_principal(),
            request_key(request, "AnswerApproval"),
            agent_id,
            conversation_id_from_proto(agent_id, optional_field(request, "conversation_id")),
            answer_from_proto(request, config),
            inputs_from_proto(request.messages),
        )
        async with aclosing(stream):
            async for events in stream:
                shown = await _events_to_proto(_included(events, run.config))
                for response in _responses(rpc.AnswerApprovalResponse, shown, together=together):
                    yield response

    async def GetRun(self, request: rpc.GetRunRequest, context: Context) -> rpc.GetRunResponse:
        run = await self._service.get(current_principal(), _run_id(request.run_id))
        return rpc.GetRunResponse(run=run_to_proto(run))

    async def ListRuns(self, request: rpc.ListRunsRequest, context: Context) -> rpc.ListRunsResponse:
        query = page_query(request, default_ascending=False)
        found = await self._service.list(current_principal(), run_filter_from_proto(request.filter), query)
        page = bounded(query, found.map(run_to_proto))
        return rpc.ListRunsResponse(runs=page.items, next_page_token=next_page_token(query, page))

    async def CancelRuns(self, request: rpc.CancelRunsRequest, context: Context) -> rpc.CancelRunsResponse:
        filter_, run_ids = cancel_target_from_proto(request)
        outcomes = await self._approvals.cancel(current_principal(), filter_, run_ids)
        return rpc.CancelRunsResponse(outcomes=outcomes_to_proto(outcomes))

    async def RetryRun(self, request: rpc.RetryRunRequest, context: Context) -> rpc.RetryRunResponse:
        key = request_key(request, "RetryRun")
        run = await self._service.retry(current_principal(), key, _run_id(request.run_id))
        return rpc.RetryRunResponse(run=run_to_proto(run))

    async def DeleteRun(self, request: rpc.DeleteRunRequest, context: Context) -> rpc.DeleteRunResponse:
        await self._service.delete(current_principal(), _run_id(request.run_id))
        return rpc.DeleteRunResponse()

    async def StreamRun(self, request: rpc.StreamRunRequest, context: Context) -> AsyncIterator[rpc.StreamRunResponse]:
        keepalive = (
            request.keepalive_seconds if request.HasField("keepalive_seconds") else RunConfig().keepalive_seconds
        )
        run, stream = await self._service.attach(
            current_principal(),
            _run_id(request.run_id),
            request.starting_after,
            keepalive,
            deltas=request.include_deltas,
        )
        async with aclosing(stream):
            async for events in stream:
                shown = await _events_to_proto(_included(events, run.config))
                for response in _responses(rpc.StreamRunResponse, shown, together=request.batch_events):
                    yield response

    async def ListSteps(self, request: rpc.ListStepsRequest, context: Context) -> rpc.ListStepsResponse:
        query = page_query(request)
        found = await self._steps.list(current_principal(), step_filter_from_proto(request.filter), query)
        page = bounded(query, found.map(STEP.to_proto))
        return rpc.ListStepsResponse(steps=page.items, next_page_token=next_page_token(query, page))

    async def GetStep(self, request: rpc.GetStepRequest, context: Context) -> rpc.GetStepResponse:
        step = await self._steps.get(current_principal(), _step_id(request.step_id))
        return rpc.GetStepResponse(step=STEP.to_proto(step))

    async def GetStepTrace(self, request: rpc.GetStepTraceRequest, context: Context) -> rpc.GetStepTraceResponse:
        trace = await self._steps.trace(current_principal(), _step_id(request.step_id))
        return rpc.GetStepTraceResponse(trace=TRACE.to_proto(trace))

    async def SetStepFeedback(
        self, request: rpc.SetStepFeedbackRequest, context: Context
    ) -> rpc.SetStepFeedbackResponse:
        key, feedback = request_key(request, "SetStepFeedback"), optional_field(request, "feedback")
        step_id = _step_id(request.step_id)
        step = await self._steps.set_feedback(current_principal(), key, step_id, feedback, request.tags)
        return rpc.SetStepFeedbackResponse(step=STEP.to_proto(step))

    async def _send(self, request: _Sending) -> AsyncGenerator[list[RunEvent], None]:
        """Starts the run of a request, and yields the events that its config includes. See `RunService.send`."""
        wanted, key = run_request_from_proto(request), request_key(request, _SENDING)
        async with aclosing(self._service.send(current_principal(), key, wanted)) as sent:
            async for events in sent:
                yield _included(events, wanted.config)


def _run_id(value: str) -> str:
    return require_id(value, "run", "run_id")


def _step_id(value: str) -> str:
    return require_id(value, "step", "step_id")


def _included(events: Iterable[RunEvent], config: RunConfig) -> list[RunEvent]:
    return [event for event in events if event.is_included(config.include_events)]


async def _events_to_proto(events: Iterable[RunEvent]) -> list[runs_pb2.RunEvent]:
    messages = []
    for event in events:
        message = event_to_proto(event)
        if message.HasField("sequence"):
            await async_failpoint("run.before_event", message.WhichOneof("event") or "")
        messages.append(message)
    return messages


def _comes_together(request: rpc.SendMessageRequest | rpc.AnswerApprovalRequest) -> bool:
    """Returns `batch_events` and clears it: the request is the same however its events come."""
    together = request.batch_events
    request.ClearField("batch_events")
    return together


def _responses(make: Callable[..., Any], events: Sequence[runs_pb2.RunEvent], *, together: bool) -> Iterator[Any]:
    """Yields a response for each event, or as few as keep them small."""
    start, size = 0, 0
    for number, event in enumerate(events):
        size += event.ByteSize()
        if number > start and (not together or size > MAX_PAGE_BYTES):
            yield make(event=events[start], further_events=events[start + 1 : number])
            start, size = number, event.ByteSize()
    if events:
        yield make(event=events[start], further_events=events[start + 1 :])
