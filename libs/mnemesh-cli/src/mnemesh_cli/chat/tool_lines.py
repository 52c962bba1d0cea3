"""Tool calls, each folded into one line with the beginning of its result."""

from __future__ import annotations

import json
from typing import Final

from mnemesh.agents.v1 import runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.display import styles
from mnemesh_client.inputs import text_of
from rich.text import Text

_ARGUMENT_CHARS: Final = 160
_SHARE_OF_CALL: Final = 0.6
_PROGRESS_CHARS: Final = 200
_EMPTY: Final = ("", "None", "null")


def call_line(mark: str, call: message_pb2.ToolCall, width: int, style: str = styles.TOOL) -> Text:
    """Returns a call without a result, as `mark name(argument=value, …)`."""
    return Text(shortened(f"{mark} {call.name}({_arguments(call.arguments)})", width), style)


def folded_line(call: message_pb2.ToolCall, result: message_pb2.ToolReturn, width: int) -> Text:
    """Returns a call and the beginning of its result in one line."""
    failed = result.status == message_pb2.TOOL_RETURN_STATUS_ERROR
    answer = " ".join(text_of(result.content).split())
    if answer in _EMPTY:
        answer = "failed" if failed else ""
    if not answer:
        return call_line("▸", call, width)
    line = call_line("▸", call, max(int(width * _SHARE_OF_CALL), width - len(answer) - 3))
    left = max(0, width - line.cell_len - 3)
    return line.append(f" {'✗' if failed else '→'} {shortened(answer, left)}", styles.REMOVED if failed else "dim")


def progress_text(progress: runs_pb2.ToolProgress) -> str:
    """Returns how far a call is, as `running name: 40%, message`; without a whole, the part that is done."""
    if progress.HasField("total") and progress.total > 0:
        done = f"{min(1.0, max(0.0, progress.progress / progress.total)):.0%}"
    else:
        done = f"{progress.progress:,.10g}"
    message = f", {progress.message}" if progress.message else ""
    return shortened(f"running {progress.name}: {done}{message}", _PROGRESS_CHARS)


def shortened(text: str, length: int) -> str:
    """Returns a text as one line of at most `length` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: max(0, length - 1)]}…"


def _arguments(text: str) -> str:
    """Returns the arguments of a tool call as `name=value, …`."""
    try:
        values = json.loads(text or "{}")
    except ValueError:
        return shortened(text, _ARGUMENT_CHARS)
    if not isinstance(values, dict):
        return shortened(text, _ARGUMENT_CHARS)
    return ", ".join(
        f"{name}={shortened(json.dumps(value, ensure_ascii=False), _ARGUMENT_CHARS)}" for name, value in values.items()
    )
