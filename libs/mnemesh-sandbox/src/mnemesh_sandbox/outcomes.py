"""Derives the outcome of a task from its ended process."""

import base64
import json
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from mnemesh_sandbox.inside import watch
from mnemesh_sandbox.process import Captured, EndedProcess
from mnemesh_sandbox.redaction import Redactor
from mnemesh_sandbox.task import Outcome, OutcomeStatus, Task, clean

MAX_ERROR_CHARS: Final = 1000
_MAX_CHARS: Final = 2**63
_OUT_OF_HEAP: Final = re.compile(
    rb"^FATAL ERROR: .*(heap out of memory|Out of memory|Allocation failed)|# Fatal .*[oO]ut of memory", re.M
)


@dataclass(frozen=True, slots=True)
class OutcomeLimits:
    """The limits that the texts of outcomes name."""

    seconds: float
    cpu_seconds: int
    memory_mb: int
    disk_mb: int
    files: int


def outcome_of(
    task: Task, ended: EndedProcess, limits: OutcomeLimits, paths: Mapping[str, str] = MappingProxyType({})
) -> Outcome:
    """Returns the outcome of `task`: its result, or the reason why it has none. No text has a value of its secrets.

    Args:
        task: The task.
        ended: Its process.
        limits: What it may use.
        paths: What errors and their traces show in place of directories of the host.
    """
    redactor = Redactor(task.secrets)

    def outcome(status: OutcomeStatus, text: str, **more: Any) -> Outcome:
        streams = (_text(ended.stdout, redactor), _without(paths, _text(ended.stderr, redactor)))
        return Outcome(status, text, *streams, ended.duration, **more)

    def failed(status: OutcomeStatus, kind: str, reason: str) -> Outcome:
        text = _without(paths, redactor.redacted(clean(f"{kind}: {reason}"), is_cut=True))
        return outcome(status, f"Error executing function {task.function}: {text}"[:MAX_ERROR_CHARS])

    if ended.timed_out:
        return failed(
            OutcomeStatus.TIMED_OUT, "TimeoutError", f"it ran longer than {limits.seconds:g} seconds and was stopped"
        )
    if ended.exceeded is not None:
        return failed(OutcomeStatus.KILLED, *_exceeded(ended.exceeded, limits))
    answer = _answer(ended.result)
    if answer is None and _ran_out_of_heap(ended):
        return failed(OutcomeStatus.KILLED, "MemoryError", f"it needed more than {limits.memory_mb} MB of memory")
    if answer is None:
        return failed(*_without_answer(ended, limits.cpu_seconds))
    if answer["ok"]:
        known = task.agent.blocks if task.agent is not None else {}
        changed = {
            label: redactor.redacted(clean(value)) for label, value in answer["blocks"].items() if label in known
        }
        text, chars = clean(answer["text"]), answer["chars"]
        shown = redactor.redacted(text, is_cut=chars > len(text))
        if not task.is_program and (parts := _parts(shown, is_cut=chars > len(text))) is not None:
            said, images = parts
            return outcome(OutcomeStatus.SUCCESS, said, chars=len(said), changed_blocks=changed, images=images)
        return outcome(OutcomeStatus.SUCCESS, shown, chars=chars + len(shown) - len(text), changed_blocks=changed)
    if answer["kind"] == "MemoryError":
        return failed(OutcomeStatus.KILLED, "MemoryError", f"it needed more than {limits.memory_mb} MB of memory")
    return failed(OutcomeStatus.ERROR, answer["kind"], answer["text"])


def _parts(text: str, *, is_cut: bool) -> tuple[str, tuple[tuple[str, bytes], ...]] | None:
    """Returns the text and the images of a result that consists of parts; None for any other result."""
    if text[:1] not in ("[", "{") or '"image"' not in text or '"data"' not in text:
        return None
    if is_cut:
        is_image = re.match(r'\[?\{"type": ?"(image|text)"', text)
        return (f"[Images of more than {len(text):,} characters in Base64 were left out.]", ()) if is_image else None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, dict) and part.get("type") in ("text", "image") for part in parts):
        return None
    texts: list[str] = []
    images: list[tuple[str, bytes]] = []
    for part in parts:
        if part["type"] == "text":
            texts.append(str(part.get("text", "")))
            continue
        image = _image(part["source"] if isinstance(part.get("source"), dict) else part)
        if image is None:
            texts.append("[An image was left out: it has no media type of an image, or no data in Base64.]")
        else:
            images.append(image)
    return "\n".join(texts), tuple(images)


def _image(part: Mapping[str, Any]) -> tuple[str, bytes] | None:
    media_type = part.get("media_type", part.get("mimeType"))
    data = part.get("data")
    if not isinstance(media_type, str) or not media_type.startswith("image/") or not isinstance(data, str):
        return None
    try:
        return media_type[:100], base64.b64decode(data, validate=True)
    except ValueError:
        return None


def end_of_program(ended: EndedProcess, limits: OutcomeLimits) -> str:
    """Returns why a program ended."""
    if ended.exceeded is not None:
        return _exceeded(ended.exceeded, limits)[1]
    answer = _answer(ended.result)
    if answer is not None and not answer["ok"]:
        return clean(f"{answer['kind']}: {answer['text']}")[:MAX_ERROR_CHARS]
    if ended.status is None:
        return "it was stopped"
    if os.WIFSIGNALED(ended.status):
        return _without_answer(ended, limits.cpu_seconds)[2]
    return f"it ended with the status {os.waitstatus_to_exitcode(ended.status)}"


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
    if not 0 <= answer.get("chars", 0) < _MAX_CHARS:
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


def _ran_out_of_heap(ended: EndedProcess) -> bool:
    """Returns whether Node ended itself because it got no more memory. It reports that as its last words."""
    status = ended.status
    return status is not None and os.WIFSIGNALED(status) and bool(_OUT_OF_HEAP.search(ended.stderr.data))


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


def _without(paths: Mapping[str, str], text: str) -> str:
    for path, shown in paths.items():
        text = text.replace(path, shown)
    return text


def _text(captured: Captured, redactor: Redactor) -> str:
    text = clean(captured.data.decode("utf-8", "replace"))
    text = redactor.redacted(text, is_cut=captured.dropped > 0)
    total = len(captured.data) + captured.dropped
    if captured.dropped:
        text += f"\n[The output was cut: it has {total} bytes, and {len(captured.data)} are kept.]"
    return text
