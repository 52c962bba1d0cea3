"""Batches and callbacks."""

from collections.abc import Mapping
from typing import Any

from mnemesh.agents.v1 import batches_pb2 as pb
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh_kit.ids import require_id
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_to_proto

from mnemesh_orchestrator.model.batches import Batch, BatchRequest
from mnemesh_orchestrator.model.callbacks import CallbackResult, ClaimedCallback
from mnemesh_orchestrator.model.runs import Run, RunStatus
from mnemesh_orchestrator.rpc.convert.fields import conversation_id_from_proto, optional_field
from mnemesh_orchestrator.rpc.convert.runs import (
    RUN_STATUS_TO_PROTO,
    config_from_proto,
    inputs_from_proto,
    run_to_proto,
)


def batch_requests_from_proto(request: rpc.StartBatchRequest) -> tuple[BatchRequest, ...]:
    """Returns the requests of a batch. Raises InvalidArgument if one is malformed. Metadata: field."""
    return tuple(_request(item, f"requests[{index}]") for index, item in enumerate(request.requests))


def _request(item: rpc.BatchRequest, field: str) -> BatchRequest:
    agent_id = require_id(item.agent_id, "agent", f"{field}.agent_id")
    return BatchRequest(
        agent_id,
        conversation_id_from_proto(agent_id, optional_field(item, "conversation_id")),
        inputs_from_proto(item.messages, f"{field}.messages"),
        config_from_proto(item.config),
    )


def batch_to_proto(batch: Batch) -> pb.Batch:
    """Returns the message of a batch."""
    return pb.Batch(
        id=batch.id,
        status=RUN_STATUS_TO_PROTO[batch.status],
        unfinished_count=batch.unfinished,
        completed_count=batch.runs.get(RunStatus.COMPLETED, 0),
        failed_count=batch.runs.get(RunStatus.FAILED, 0),
        cancelled_count=batch.runs.get(RunStatus.CANCELLED, 0),
        callback=None if batch.callback is None else _callback_to_proto(batch.callback),
        create_time=timestamp_to_proto(batch.created_at),
        completion_time=optional_timestamp_to_proto(batch.completed_at),
    )


def _callback_to_proto(callback: CallbackResult) -> pb.Callback:
    return pb.Callback(
        url=callback.url,
        sent_time=optional_timestamp_to_proto(callback.sent_at),
        status=callback.status,
        error=callback.error,
    )


def due_callback_to_proto(callback: ClaimedCallback, target: Run | Batch) -> pb.DueCallback:
    """Returns the message of a callback that is due, with what has ended."""
    ended: Mapping[str, Any] = (
        {"run": run_to_proto(target)} if isinstance(target, Run) else {"batch": batch_to_proto(target)}
    )
    return pb.DueCallback(
        organization_id=callback.organization_id,
        subject_id=callback.subject_id,
        url=callback.url,
        attempt=callback.attempt,
        **ended,
    )
