"""Rows of steps and traces. Steps are JSON documents; requests and responses of the model are compressed texts."""

import zlib
from dataclasses import dataclass
from typing import Any

import msgspec

from mnemesh_orchestrator.model.steps import SharedRequest, Step, StepTrace

_STEP = msgspec.json.Decoder(Step)
_FAST = 1
"""The level of compression. Requests of a conversation are so similar that a higher level gains little."""

_DIFFERENCE = b"D"
"""The prefix of a request that is stored as a difference. Compressed texts start with another byte."""


@dataclass(frozen=True, slots=True)
class _Difference:
    """A request without the parts that it shares with an earlier one."""

    shared: SharedRequest
    middle: str


_DECODE_DIFFERENCE = msgspec.msgpack.Decoder(_Difference).decode
encode_step = msgspec.json.Encoder().encode


def step_row(step: Step) -> dict[str, Any]:
    """Returns the row of an ended step. The parameter `p_run` finds the organization."""
    return {
        "id": step.id,
        "p_run": step.run_id,
        "run_id": step.run_id,
        "agent_id": step.agent_id,
        "number": step.number,
        "model": step.model,
        "trace_id": step.trace_id,
        "document": encode_step(step),
        "created_at": step.created_at,
    }


def decode_step(document: bytes) -> Step:
    """Returns the step of a document."""
    return _STEP.decode(document)


def trace_row(run_id: str, trace: StepTrace) -> dict[str, Any]:
    """Returns a trace as a row of its run. A shared request is stored as its difference from the earlier one."""
    request, shared = trace.request, trace.shared
    if shared is None:
        stored = compressed(request)
    else:
        middle = request[shared.start : len(request) - shared.end]
        stored = _DIFFERENCE + zlib.compress(msgspec.msgpack.encode(_Difference(shared, middle)), _FAST)
    return {
        "step_id": trace.step_id,
        "run_id": run_id,
        "request": stored,
        "response": compressed(trace.response),
        "model_ms": trace.model_ms,
        "created_at": trace.created_at,
    }


def compressed(text: str) -> bytes:
    """Returns a text as it is stored."""
    return zlib.compress(text.encode(), _FAST)


def earlier_step(row: Any) -> str | None:
    """Returns the step whose request the trace of a row needs; None if it is stored whole."""
    return _difference(row).shared.step_id if row.request.startswith(_DIFFERENCE) else None


def decode_trace(row: Any, earlier: Any = None) -> StepTrace:
    """Returns the trace of a row of `step_traces`.

    Args:
        row: the row.
        earlier: the row of the step that `earlier_step` names.
    """
    if earlier is None:
        request = zlib.decompress(row.request).decode()
    else:
        known, difference = zlib.decompress(earlier.request).decode(), _difference(row)
        start, end = difference.shared.start, difference.shared.end
        request = known[:start] + difference.middle + known[len(known) - end :]
    return StepTrace(row.step_id, request, zlib.decompress(row.response).decode(), row.model_ms, row.created_at)


def _difference(row: Any) -> _Difference:
    return _DECODE_DIFFERENCE(zlib.decompress(row.request.removeprefix(_DIFFERENCE)))
