"""Executes one tool. Reads the task from stdin, as a line of JSON with its content, and writes the result to a pipe."""

import gc
import json
import os
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from . import definitions, programs, values

MAX_ERROR_CHARS = 1000
IMAGE_FACTOR = 4
"""A result with images can be longer than another one."""
_EMPTY_TASK = json.dumps(
    {
        "name": "tool",
        "source": "def tool(number: int, text: str = ''):\n    return [number, text]\n",
        "arguments": {"number": 1},
        "definitions": {},
        "has_content": False,
    }
)


def run(
    result_fd: int,
    output_chars: int,
    environment: Mapping[str, str],
    package_directories: Sequence[str],
    pipes: tuple[int, int] | None,
    input_fd: int | None,
) -> None:
    """Reads the task, executes it and writes one JSON object to `result_fd`. Returns even if the tool fails.

    Args:
        result_fd: The descriptor of the result pipe.
        output_chars: The maximum length of the result.
        environment: Variables that the task's own do not override.
        package_directories: Directories of packages that the tool can import.
        pipes: The pipe for calls of tools, and the one with the answers; None for a task without tools.
        input_fd: The standard input of the task; None for one whose input has reached its end.
    """
    text = sys.stdin.buffer.readline()
    if not text:
        return  # the server has no task for this process
    task = json.loads(text)
    # To the end of the pipe, also without content: from then on the outer process measures the tool.
    content = sys.stdin.buffer.read()
    if input_fd is not None:
        os.dup2(input_fd, 0)
        os.close(input_fd)
    os.environ.clear()
    # A thread of a library for linear algebra reserves memory that counts against the limit of the tool.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    threads = threads if package_directories else {}
    # The uid of a tool has no account that could name a home.
    os.environ.update({"HOME": os.getcwd(), **threads, **task["environment"], **environment})
    _add_packages(package_directories)
    process = os.getpid()
    agent = AgentState(task["agent"]) if task["agent"] is not None else None
    try:
        is_program = task["is_program"]
        value = programs.run(task, pipes) if is_program else _call(task, content, agent)
        # A program that ends without a value has no result.
        answer = _answer("" if is_program and value is None else value, output_chars)
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


def warm_up() -> None:
    """Executes a task that does nothing, in a process that waits for its task.

    The first use of a page of memory or of a module takes time. This spends it before the task arrives.
    """
    import asyncio  # noqa: F401, PLC0415 - tools and programs with `await` need it

    task = json.loads(_EMPTY_TASK)
    text = json.dumps(_answer(_call(task, b"", None), MAX_ERROR_CHARS))
    json.loads(text)
    del sys.modules["tool"]
    gc.freeze()  # a collection during the task writes to no page of these objects


def _add_packages(directories: Sequence[str]) -> None:
    if directories:
        import site  # noqa: PLC0415

        for directory in directories:
            site.addsitedir(directory)  # it also reads .pth files


class Block:
    """A core memory block as a tool sees it. Assigning to `value` changes the block; other changes have no effect."""

    def __init__(self, label: str, value: str, description: str | None = None, limit: int | None = None) -> None:
        self.label = label
        self.value = value
        self.description = description
        self.limit = limit


class Memory:
    """The blocks of `agent_state.memory`."""

    def __init__(self, blocks: Mapping[str, str], properties: Mapping[str, Mapping[str, Any]]) -> None:
        self._blocks = {label: Block(label, value, **properties.get(label, {})) for label, value in blocks.items()}

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


class NoClient:
    """Stands for the client of a server, which the sources of tools may expect, and of which tools have none."""

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(
            "A tool has no client of the server. Read and change blocks through agent_state.memory, or call an API "
            "with a package and network_hosts."
        )


class AgentState:
    """The agent as a tool sees it."""

    def __init__(self, agent: Mapping[str, Any]) -> None:
        self.id: str = agent["id"]
        self.agent_id = self.id
        self.name: str = agent["name"]
        self.memory = Memory(agent["blocks"], agent["properties"])
        self._before: Mapping[str, str] = dict(agent["blocks"])

    def changes(self) -> dict[str, str]:
        """Returns the blocks whose value has changed, by label."""
        now = {block.label: str(block.value) for block in self.memory.blocks}
        return {label: value for label, value in now.items() if value != self._before.get(label)}


def _call(task: Mapping[str, Any], content: bytes, agent: AgentState | None) -> Any:
    # A module, because dataclasses and models look up the types of their fields in the module of their class.
    module = sys.modules["tool"] = ModuleType("tool")
    namespace: dict[str, Any] = vars(module)
    # The sources of tools use List, Optional and similar names without importing them.
    namespace.update({key: getattr(typing, key) for key in typing.__all__})
    namespace["client"] = NoClient()
    if task["definitions"]:
        namespace.update(definitions.classes(task["definitions"], module.__name__))
    exec(compile(task["source"], _filename(task), "exec", dont_inherit=True), namespace)  # noqa: S102
    function = namespace[task["name"]]
    arguments = values.converted(function, task["arguments"], namespace)
    if task["has_content"]:
        arguments["content"] = content
    value = function(**_complete_arguments(function, arguments, agent))
    if hasattr(value, "__await__"):
        import asyncio  # noqa: PLC0415

        async def wait() -> Any:
            return await value

        return asyncio.run(wait())
    return value


def _filename(task: Mapping[str, Any]) -> str:
    return programs.filename(task["name"])


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
    available = {"agent_state": agent, "client": NoClient()}
    injected = {name: value for name, value in available.items() if name in names}
    return {**{name: None for name in names if name not in optional}, **arguments, **injected}


def _answer(value: Any, output_chars: int) -> dict[str, Any]:
    parts = _parts(value)
    text = _text(value) if parts is None else json.dumps(parts, ensure_ascii=False, default=_json_default)
    longest = output_chars if parts is None else output_chars * IMAGE_FACTOR
    return {"ok": True, "text": text[:longest], "chars": len(text)}


def _parts(value: Any) -> list[Any] | None:
    """Returns the parts of a result with images, with their bytes in Base64; None for any other value."""
    plain = values.plain(value)
    parts = list(plain) if isinstance(plain, (list, tuple)) else [plain]
    parts = [values.plain(part) for part in parts]
    if not all(isinstance(part, dict) and part.get("type") in ("text", "image") for part in parts):
        return None
    if not any(part["type"] == "image" and ("data" in part or "source" in part) for part in parts):
        return None
    return [{**part, "data": _base64(part["data"])} if "data" in part else part for part in parts]


def _base64(data: Any) -> Any:
    if not isinstance(data, (bytes, bytearray)):
        return data
    import base64  # noqa: PLC0415 - most tools return no image

    return base64.b64encode(data).decode()


def _text(value: Any) -> str:
    """Returns a value as text: objects as JSON if possible, everything else in the words of Python."""
    plain = values.plain(value)
    if isinstance(plain, dict):
        try:
            return json.dumps(plain, ensure_ascii=False, default=_json_default)
        except (TypeError, ValueError, RecursionError):  # keys that JSON does not support, or a recursive value
            pass
    return str(value if isinstance(value, (set, frozenset)) else plain)


def _json_default(value: Any) -> Any:
    plain = values.plain(value)
    return str(value) if plain is value else plain


def _failure(task: Mapping[str, Any], error: BaseException) -> dict[str, Any]:
    try:
        import linecache  # noqa: PLC0415
        import traceback  # noqa: PLC0415

        lines = task["source"].splitlines(keepends=True)
        linecache.cache[_filename(task)] = (len(task["source"]), None, lines, _filename(task))
        # Frames of this file do not help the author of the tool.
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        hidden = (__file__, programs.__file__)
        sys.stderr.write("".join(line for line in lines if not any(path in line for path in hidden)))
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
