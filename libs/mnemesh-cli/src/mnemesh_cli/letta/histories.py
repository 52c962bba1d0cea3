"""Runs, steps and block histories of Letta as records."""

from __future__ import annotations

from typing import Final

from google.protobuf.duration_pb2 import Duration
from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.agents.v1.runs_pb2 import Run, RunConfig, RunError, Step
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.blocks.v1.blocks_pb2 import AgentAuthor, Author, BlockRevision, OwnerAuthor
from mnemesh.types.v1.message_pb2 import Usage
from mnemesh_client.letta_files.resources import block_label
from mnemesh_client.letta_files.values import Row, json_text, optional_text, timestamp
from mnemesh_kit.ids import is_id
from mnemesh_kit.unicode import well_formed

_RUN_STATUSES: Final = {
    "created": runs_pb2.RUN_STATUS_CREATED,
    "running": runs_pb2.RUN_STATUS_RUNNING,
    "completed": runs_pb2.RUN_STATUS_COMPLETED,
    "failed": runs_pb2.RUN_STATUS_FAILED,
    "cancelled": runs_pb2.RUN_STATUS_CANCELLED,
}
ENDED: Final = ("completed", "failed", "cancelled")
_STEP_STATUSES: Final = {
    "PENDING": runs_pb2.STEP_STATUS_PENDING,
    "SUCCESS": runs_pb2.STEP_STATUS_SUCCESS,
    "FAILED": runs_pb2.STEP_STATUS_FAILED,
    "CANCELLED": runs_pb2.STEP_STATUS_CANCELLED,
}


def stop_reason(name: str | None) -> agents_pb2.StopReason.ValueType | None:
    """Returns a stop reason; None if there is none or it is not known."""
    return agents_pb2.StopReason.Value(key) if (key := _enum_key(name)) else None


def run_record(row: Row, conversation_id: str, usage: Usage, step_count: int) -> Run:
    """Returns an ended run.

    Args:
        row: a row of `runs`.
        conversation_id: ours, of the run.
        usage: the sum of its steps.
        step_count: the number of its steps.
    """
    result = Run(
        id=row["id"],
        agent_id=row["agent_id"],
        conversation_id=conversation_id,
        status=_RUN_STATUSES[row["status"]],
        stop_reason=stop_reason(row.get("stop_reason")),
        background=bool(row.get("background")),
        config=RunConfig(metadata=json_text(row.get("metadata_"))),
        usage=usage,
        step_count=step_count,
        time_to_first_token=_duration(row.get("ttft_ns")),
        total_duration=_duration(row.get("total_duration_ns")),
        callback_error=optional_text(row, "callback_error"),
        callback_status=row.get("callback_status_code"),
        callback_sent_time=timestamp(row.get("callback_sent_at")),
        origin=runs_pb2.RUN_ORIGIN_CLIENT,
        create_time=timestamp(row.get("created_at")),
        update_time=timestamp(row.get("updated_at")),
        completion_time=timestamp(row.get("completed_at") or row.get("updated_at")),
    )
    if row.get("callback_url"):
        result.config.callback_url = row["callback_url"]
    if row["status"] == "failed":
        result.error.CopyFrom(RunError(reason="", message=_run_error(row)))
    return result


def _run_error(row: Row) -> str:
    """Returns the error that Letta stored for a failed run, which is a text or an object with a text."""
    error = (row.get("metadata_") or {}).get("error")
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or json_text(error)
    return (
        well_formed(str(error))
        if error
        else f"The run failed in Letta: {row.get('stop_reason') or 'without a reason'}."
    )


def step_record(row: Row, conversation_id: str, number: int) -> Step:
    """Returns a step; `number` is its 1-based position in the run."""
    handle = row.get("model_handle") or f"{row.get('provider_name') or 'unknown'}/{row.get('model') or 'unknown'}"
    result = Step(
        id=row["id"],
        run_id=row["run_id"],
        agent_id=row["agent_id"],
        conversation_id=conversation_id,
        number=number,
        status=_STEP_STATUSES.get(step_status(row), runs_pb2.STEP_STATUS_SUCCESS),
        stop_reason=stop_reason(row.get("stop_reason")),
        provider=row.get("provider_name") or "",
        model=handle,
        endpoint=optional_text(row, "model_endpoint"),
        context_window_limit=row.get("context_window_limit") or 0,
        usage=usage_of(row),
        tags=row.get("tags") or (),
        feedback=optional_text(row, "feedback"),
        trace_id=optional_text(row, "trace_id"),
        attempts=1,
        create_time=timestamp(row.get("created_at")),
        completion_time=timestamp(row.get("updated_at")),
    )
    if row.get("error_type"):
        details = row.get("error_data") or {}
        message = details.get("message") or json_text(details) or row["error_type"]
        result.error.CopyFrom(RunError(reason=str(row["error_type"]), message=well_formed(str(message))))
    return result


def step_status(row: Row) -> str:
    """Returns the status of a step in upper case. Steps of early releases have none; they succeeded."""
    return str(row.get("status") or "SUCCESS").rsplit(".", maxsplit=1)[-1].upper()


def usage_of(row: Row) -> Usage:
    """Returns the tokens of a step."""
    prompt_details = row.get("prompt_tokens_details") or {}
    completion_details = row.get("completion_tokens_details") or {}
    return Usage(
        prompt_tokens=row.get("prompt_tokens"),
        completion_tokens=row.get("completion_tokens"),
        total_tokens=row.get("total_tokens"),
        cached_input_tokens=_first(row.get("cached_input_tokens"), prompt_details.get("cached_tokens")),
        cache_write_tokens=_first(row.get("cache_write_tokens"), prompt_details.get("cache_creation_tokens")),
        reasoning_tokens=_first(row.get("reasoning_tokens"), completion_details.get("reasoning_tokens")),
    )


def add_usage(total: Usage, step: Usage) -> None:
    """Adds the tokens of a step to those of its run."""
    for descriptor, value in step.ListFields():
        setattr(total, descriptor.name, getattr(total, descriptor.name) + value)


def block_revision(row: Row, number: int) -> BlockRevision:
    """Returns a checkpoint of a block as its revision `number`."""
    value = well_formed(row.get("value") or "")
    return BlockRevision(
        block_id=row["block_id"],
        revision=number,
        operation=blocks_pb2.BLOCK_OPERATION_CREATE if number == 1 else blocks_pb2.BLOCK_OPERATION_UPDATE,
        label=block_label(row["label"]),
        value=value,
        description=optional_text(row, "description"),
        limit=max(int(row.get("limit") or 0), len(value)),
        author=_author(row),
        create_time=timestamp(row.get("created_at")),
    )


def _author(row: Row) -> Author:
    actor = row.get("actor_id") or ""
    if str(row.get("actor_type")).lower().endswith("agent") and is_id(actor, "agent"):
        return Author(agent=AgentAuthor(agent_id=actor))
    return Author(owner=OwnerAuthor(subject_id=actor))


def _enum_key(name: str | None) -> str | None:
    key = f"STOP_REASON_{(name or '').upper()}"
    return key if key in agents_pb2.StopReason.keys() else None  # noqa: SIM118  (an enum wrapper, not a mapping)


def _duration(nanoseconds: int | None) -> Duration | None:
    if nanoseconds is None:
        return None
    result = Duration()
    result.FromNanoseconds(nanoseconds)
    return result


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
