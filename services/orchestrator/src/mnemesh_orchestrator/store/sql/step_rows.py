"""Steps as rows: the record is a JSON document, what went to the model and came back is compressed text."""

import zlib
from typing import Any

import msgspec

from mnemesh_orchestrator.model.steps import Step, StepTrace

_STEP = msgspec.json.Decoder(Step)
_FAST = 1
"""The level of compression: requests of a conversation repeat themselves so much that more gains little."""

encode_step = msgspec.json.Encoder().encode


def step_row(step: Step) -> dict[str, Any]:
    """A concluded step as a row; `its_run` finds the organization."""
    return {
        "id": step.id,
        "its_run": step.run_id,
        "run_id": step.run_id,
        "agent_id": step.agent_id,
        "number": step.number,
        "model": step.model,
        "trace_id": step.trace_id,
        "document": encode_step(step),
        "created_at": step.created_at,
    }


def decode_step(document: bytes) -> Step:
    """The step of a document."""
    return _STEP.decode(document)


def trace_row(run_id: str, trace: StepTrace) -> dict[str, Any]:
    """A trace as a row of its run."""
    return {
        "step_id": trace.step_id,
        "run_id": run_id,
        "request": zlib.compress(trace.request.encode(), _FAST),
        "response": zlib.compress(trace.response.encode(), _FAST),
        "model_ms": trace.model_ms,
        "created_at": trace.created_at,
    }


def decode_trace(row: Any) -> StepTrace:
    """The trace of a row of `step_traces`."""
    request, response = zlib.decompress(row.request).decode(), zlib.decompress(row.response).decode()
    return StepTrace(row.step_id, request, response, row.model_ms, row.created_at)
