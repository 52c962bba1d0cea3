"""Batches of the contract, which are jobs of Letta's API."""

from __future__ import annotations

from mnemesh.agents.v1 import batches_pb2 as pb
from mnemesh.agents.v1 import runs_service_pb2 as rpc

from mnemesh_gateway.letta.convert.names import RUN_STATUS_NAMES
from mnemesh_gateway.letta.convert.sending import config_to_proto, sent_of
from mnemesh_gateway.letta.convert.values import moment, present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.schemas.batches import BatchRequest
from mnemesh_gateway.letta.schemas.folders import Job


def job_of_batch(batch: pb.Batch) -> Job:
    """Returns the job of a batch. Its metadata has the numbers of its runs by status."""
    counts = {
        "unfinished": batch.unfinished_count,
        "completed": batch.completed_count,
        "failed": batch.failed_count,
        "cancelled": batch.cancelled_count,
    }
    ended = moment(batch, "completion_time")
    return Job(
        id="job-" + batch.id.partition("-")[2],
        status=RUN_STATUS_NAMES.get(batch.status, "running"),
        created_at=moment(batch, "create_time"),
        updated_at=ended or moment(batch, "create_time"),
        completed_at=ended,
        job_type="batch",
        callback_url=batch.callback.url or None,
        callback_sent_at=moment(batch.callback, "sent_time"),
        callback_status_code=present(batch.callback, "status"),
        callback_error=present(batch.callback, "error"),
        metadata={"job_type": "batch_messages", "runs": counts},
    )


def batch_id_of(job_id: str) -> str:
    """Returns the id of the batch of a job."""
    return "batch-" + job_id.partition("-")[2]


def batch_request_to_proto(body: BatchRequest, index: int) -> rpc.BatchRequest:
    """Returns a run to start.

    Raises:
        ValidationFailed: the messages are malformed, or answer a request for approval.
    """
    sent = sent_of(body)
    if sent.is_answer:
        raise invalid_field("An approval is answered outside of a batch.", "body", "requests", index, "messages")
    config = config_to_proto(body)
    config.ClearField("callback_url")  # the batch has one
    return rpc.BatchRequest(agent_id=body.agent_id, messages=sent.messages, config=config)
