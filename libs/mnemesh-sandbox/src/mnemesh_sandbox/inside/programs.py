"""Executes a program in Python. The value of its last expression is its result."""

import ast
import inspect
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

_RESULT = "__mnemesh_result__"
_MAX_CALL_CHARS = 1_048_576
_CHUNK = 65_536


class ToolError(Exception):
    """A tool that the program called has failed, or was refused."""


def filename(name: str) -> str:
    """Returns the name that a source has in traces."""
    return f"<tool {name}>"


def run(task: Mapping[str, Any], pipes: tuple[int, int] | None) -> Any:
    """Executes the program of a task and returns the value of its last expression; None if it ends with none.

    Args:
        task: The task.
        pipes: The pipe for calls of tools, and the one with the answers.
    """
    tree = ast.parse(task["source"], filename(task["name"]))
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        target = ast.Name(_RESULT, ast.Store())
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(ast.Assign([target], last.value), last))
    code = compile(tree, filename(task["name"]), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    # The module of the program, because classes look up the types of their fields there.
    module = sys.modules["__main__"] = ModuleType("__main__")
    namespace = vars(module)
    if pipes is not None:
        namespace.update({"ToolError": ToolError, **_functions(task["tools"], *pipes)})
    try:
        value = eval(code, namespace)  # noqa: S307 - this is what the sandbox is for
        if code.co_flags & inspect.CO_COROUTINE:
            import asyncio  # noqa: PLC0415 - it takes longer to load than all others together

            asyncio.run(value)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    return namespace.get(_RESULT)


def _functions(tools: Mapping[str, list[str]], calls: int, replies: int) -> dict[str, Callable[..., str]]:
    """Returns a function for each tool. They may be called in threads, and then wait for each other."""
    lock = threading.Lock()
    number = 0
    rest = b""

    def call(name: str, arguments: Mapping[str, Any]) -> str:
        nonlocal number, rest
        with lock:
            number += 1
            line = json.dumps({"id": number, "name": name, "arguments": arguments}, default=str)
            if len(line) > _MAX_CALL_CHARS:
                raise ValueError(f"The arguments of {name} are too long")
            data = line.encode() + b"\n"
            try:
                while data:
                    data = data[os.write(calls, data) :]
                while b"\n" not in rest:
                    chunk = os.read(replies, _CHUNK)
                    if not chunk:
                        raise ToolError("Tools cannot be called any more")
                    rest += chunk
            except BrokenPipeError as error:
                raise ToolError("Tools cannot be called any more") from error
            reply, _, rest = rest.partition(b"\n")
        answer = json.loads(reply)
        if not answer["ok"]:
            raise ToolError(answer["value"])
        value: str = answer["value"]
        return value

    def function(name: str, parameters: list[str]) -> Callable[..., str]:
        def tool(*given: Any, **named: Any) -> str:
            if len(given) > len(parameters):
                raise TypeError(f"{name} takes {len(parameters)} arguments, not {len(given)}")
            positional = dict(zip(parameters, given, strict=False))
            if twice := positional.keys() & named.keys():
                raise TypeError(f"{name} got several values for {', '.join(sorted(twice))}")
            return call(name, {**positional, **named})

        tool.__name__ = tool.__qualname__ = name
        return tool

    return {name: function(name, parameters) for name, parameters in tools.items()}
