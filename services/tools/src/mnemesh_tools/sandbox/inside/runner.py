"""Executes one tool. Reads the task as JSON from stdin and writes the result as JSON to a pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

MAX_ERROR_CHARS = 1000


def run(result_fd: int, output_chars: int) -> None:
    """Reads the task, executes it and writes one JSON object to `result_fd`. Returns even if the tool fails.

    Args:
        result_fd: The descriptor of the result pipe.
        output_chars: The maximum length of the result.
    """
    task = json.loads(sys.stdin.buffer.read())
    os.environ.clear()
    os.environ.update(task["environment"])
    process = os.getpid()
    agent = AgentState(task["agent"]) if task["agent"] is not None else None
    try:
        answer = _answer(_call(task, agent), output_chars)
        answer["blocks"] = agent.changes() if agent is not None else {}
    except BaseException as error:
        if os.getpid() != process:
            os._exit(1)
        answer = _failure(task, error)
    if os.getpid() != process:
        os._exit(0)  # a fork of the tool returned from the function; its parent sends the answer
    _send(result_fd, answer)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # the tool closed or replaced the stream


class Block:
    """A core memory block as a tool sees it. Assigning to `value` changes the block."""

    def __init__(self, label: str, value: str) -> None:
        self.label = label
        self.value = value


class Memory:
    """The blocks of `agent_state.memory`."""

    def __init__(self, blocks: Mapping[str, str]) -> None:
        self._blocks = {label: Block(label, value) for label, value in blocks.items()}

    @property
    def blocks(self) -> list[Block]:
        return list(self._blocks.values())

    def list_block_labels(self) -> list[str]:
        return list(self._blocks)

    def get_block(self, label: str) -> Block:
        if label not in self._blocks:
            raise KeyError(f"Block field {label} does not exist (available sections = {', '.join(self._blocks)})")
        return self._blocks[label]

    def update_block_value(self, label: str, value: str) -> None:
        if not isinstance(value, str):
            raise TypeError("Provided value must be a string")
        self.get_block(label).value = value


class AgentState:
    """The agent as a tool sees it."""

    def __init__(self, agent: Mapping[str, Any]) -> None:
        self.id: str = agent["id"]
        self.agent_id = self.id
        self.name: str = agent["name"]
        self.memory = Memory(agent["blocks"])
        self._before: Mapping[str, str] = dict(agent["blocks"])

    def changes(self) -> dict[str, str]:
        """Returns the blocks whose value has changed, by label."""
        now = {block.label: str(block.value) for block in self.memory.blocks}
        return {label: value for label, value in now.items() if value != self._before.get(label)}


def _call(task: Mapping[str, Any], agent: AgentState | None) -> Any:
    import typing  # noqa: PLC0415

    # The sources of tools use List, Optional and similar names without importing them.
    namespace: dict[str, Any] = {key: getattr(typing, key) for key in typing.__all__}
    namespace["__name__"] = "tool"
    exec(compile(task["source"], _filename(task), "exec", dont_inherit=True), namespace)  # noqa: S102
    function = namespace[task["name"]]
    value = function(**_complete_arguments(function, task["arguments"], agent))
    if hasattr(value, "__await__"):
        import asyncio  # noqa: PLC0415

        async def wait() -> Any:
            return await value

        return asyncio.run(wait())
    return value


def _filename(task: Mapping[str, Any]) -> str:
    return f"<tool {task['name']}>"


def _complete_arguments(
    function: Callable[..., Any], arguments: dict[str, Any], agent: AgentState | None
) -> dict[str, Any]:
    """Returns `arguments`, with None for parameters without a default, and the agent as `agent_state` if requested."""
    code = getattr(function, "__code__", None)
    if code is None:
        return arguments
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    defaults = getattr(function, "__defaults__", None) or ()
    optional = {*names[code.co_argcount - len(defaults) : code.co_argcount], *(function.__kwdefaults__ or {})}
    injected = {"agent_state": agent} if "agent_state" in names else {}
    return {**{name: None for name in names if name not in optional}, **arguments, **injected}


def _answer(value: Any, output_chars: int) -> dict[str, Any]:
    """Returns the answer with the value as text: a string unchanged, None as "", others as JSON if possible."""
    if value is None:
        text = ""
    elif not isinstance(value, (bool, int, float, dict, list, tuple, set, frozenset)):
        text = str(value)
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=_plain)
        except (TypeError, ValueError, RecursionError):  # keys that JSON does not support, or a recursive value
            text = str(value)
    return {"ok": True, "text": text[:output_chars], "chars": len(text)}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (set, frozenset)) else str(value)


def _failure(task: Mapping[str, Any], error: BaseException) -> dict[str, Any]:
    try:
        import linecache  # noqa: PLC0415
        import traceback  # noqa: PLC0415

        lines = task["source"].splitlines(keepends=True)
        linecache.cache[_filename(task)] = (len(task["source"]), None, lines, _filename(task))
        # Frames of this file do not help the author of the tool.
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        sys.stderr.write("".join(line for line in lines if __file__ not in line))
        message = str(error)
    except BaseException:
        message = ""
    return {"ok": False, "kind": type(error).__name__[:200], "text": message[:MAX_ERROR_CHARS]}


def _send(result_fd: int, answer: dict[str, Any]) -> None:
    data = json.dumps(answer).encode()
    while data:
        try:
            data = data[os.write(result_fd, data) :]
        except OSError:
            return  # the tool closed the pipe; the server reports that the process ended without a result
