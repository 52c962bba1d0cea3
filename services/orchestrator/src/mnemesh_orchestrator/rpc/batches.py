"""The batches and callbacks of `mnemesh.agents.v1.RunService`."""

from typing import Any

import grpc
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.agents.v1 import runs_service_pb2_grpc
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import bounded, next_page_token, page_query
from mnemesh_kit.principal import current_principal

from mnemesh_orchestrator.rpc.convert.batches import (
    batch_requests_from_proto,
    batch_to_proto,
    due_callback_to_proto,
)
from mnemesh_orchestrator.rpc.convert.fields import optional_field
from mnemesh_orchestrator.usecases.batches import BatchService
from mnemesh_orchestrator.usecases.callbacks import CallbackService

Context = grpc.aio.ServicerContext[Any, Any]


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
        """Returns a batch."""
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
