"""Derives the outcome of a task from its ended process."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_tools.sandbox.inside import watch
from mnemesh_tools.sandbox.process import Captured, EndedProcess
from mnemesh_tools.sandbox.task import Outcome, OutcomeStatus, Task, clean

MAX_ERROR_CHARS: Final = 1000


@dataclass(frozen=True, slots=True)
class OutcomeLimits:
    """The limits that the texts of outcomes name."""

    seconds: float
    cpu_seconds: int
    memory_mb: int
    disk_mb: int
    files: int


def outcome_of(task: Task, ended: EndedProcess, limits: OutcomeLimits) -> Outcome:
    """Returns the outcome of `task`: its result, or the reason why it has none."""

    def outcome(status: OutcomeStatus, text: str, **more: Any) -> Outcome:
        streams = (_text(ended.stdout), _text(ended.stderr))
        return Outcome(status, clean(text), *streams, ended.duration, **more)

    def failed(status: OutcomeStatus, kind: str, reason: str) -> Outcome:
        return outcome(status, f"Error executing function {task.function}: {kind}: {reason}"[:MAX_ERROR_CHARS])

    if ended.timed_out:
        return failed(
            OutcomeStatus.TIMED_OUT, "TimeoutError", f"it ran longer than {limits.seconds:g} seconds and was stopped"
        )
    if ended.exceeded is not None:
        return failed(OutcomeStatus.KILLED, *_exceeded(ended.exceeded, limits))
    answer = _answer(ended.result)
    if answer is None:
        return failed(*_without_answer(ended, limits.cpu_seconds))
    if answer["ok"]:
        known = task.agent.blocks if task.agent is not None else {}
        changed = {label: clean(value) for label, value in answer["blocks"].items() if label in known}
        return outcome(OutcomeStatus.SUCCESS, answer["text"], chars=answer["chars"], changed_blocks=changed)
    if answer["kind"] == "MemoryError":
        return failed(OutcomeStatus.KILLED, "MemoryError", f"it needed more than {limits.memory_mb} MB of memory")
    return failed(OutcomeStatus.ERROR, answer["kind"], answer["text"])


def _answer(result: Captured) -> dict[str, Any] | None:
    """Returns the runner's answer, or None if the data is not one. The tool can write to the pipe, too."""
    try:
        answer = json.loads(result.data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or result.dropped:
        return None
    kinds = {"ok": bool, "text": str} | ({"chars": int, "blocks": dict} if answer.get("ok") else {"kind": str})
    if not all(isinstance(answer.get(key), kind) for key, kind in kinds.items()):
        return None
    if not all(isinstance(value, str) for value in answer.get("blocks", {}).values()):
        return None
    return answer


def _exceeded(limit: str, limits: OutcomeLimits) -> tuple[str, str]:
    match limit:
        case watch.MEMORY:
            return "MemoryError", f"its processes needed more than {limits.memory_mb} MB of memory together"
        case watch.DISK:
            return (
                "ResourceError",
                f"its files needed more than {limits.disk_mb} MB, or were more than {limits.files:,}",
            )
        case _:
            return "ResourceError", "one of its processes cannot be measured"


def _without_answer(ended: EndedProcess, cpu_seconds: int) -> tuple[OutcomeStatus, str, str]:
    status = ended.status
    if status is not None and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            reason = f"it used more than {cpu_seconds} seconds of processor time and was stopped"
            return OutcomeStatus.KILLED, "ResourceError", reason
        return OutcomeStatus.KILLED, "ResourceError", f"its process was killed by {signal.Signals(number).name}"
    if ended.result.data:
        return OutcomeStatus.ERROR, "ValueError", "its result cannot be read"
    return OutcomeStatus.ERROR, "SystemExit", "its process ended before the function returned"


def _text(captured: Captured) -> str:
    text = clean(captured.data.decode("utf-8", "replace"))
    total = len(captured.data) + captured.dropped
    if captured.dropped:
        text += f"\n[The output was cut: it has {total} bytes, and {len(captured.data)} are kept.]"
    return text
