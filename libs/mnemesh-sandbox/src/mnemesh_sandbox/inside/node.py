"""Replaces the process that executes a task by Node."""

import json
import os
from collections.abc import Mapping
from typing import NoReturn

from .plan import Plan

_RUNNER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runner.cjs")
# V8 needs memory beside its heap: for code, buffers and the runner itself.
_HEAP_SHARE = 0.75
_MEGABYTE = 1024 * 1024
# The export under which the source names the function of a tool.
EXPORT = "__mnemesh_tool__"


class Node:
    """The program and the script, opened while their paths can still be reached."""

    def __init__(self, plan: Plan, path: str) -> None:
        self._plan = plan
        self._path = path
        # Executed by its descriptor: the uid of the tool may not reach the directory of the program.
        self._program = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @staticmethod
    def script() -> str:
        """Returns the text of the runner."""
        with open(_RUNNER, encoding="utf-8") as file:
            return file.read()

    def execute(self, script: str, environment: Mapping[str, str]) -> NoReturn:
        """Starts Node in this process. It reads the task from stdin, as the runner for Python does.

        Args:
            script: The text of the runner.
            environment: Variables that the task's own do not override.
        """
        plan = self._plan
        directory = plan.package_directories[0] if plan.package_directories else "/tmp/work"  # noqa: S108 - no file
        configuration = {
            "resultFd": plan.result_fd,
            "callsFd": plan.calls_fd,
            "repliesFd": plan.replies_fd,
            "outputChars": plan.limits.output_chars,
            "environment": {"HOME": os.getcwd(), **environment},
            "url": f"file://{directory}/tool.mjs",
            "file": "tool",
            "export": EXPORT,
            "waits": plan.waits,
        }
        for number in (plan.result_fd, plan.calls_fd, plan.replies_fd):
            if number is not None:
                os.set_inheritable(number, True)
        heap = round(plan.limits.memory_bytes * _HEAP_SHARE / _MEGABYTE)
        options = [
            f"--max-old-space-size={heap}",
            "--disable-warning=ExperimentalWarning",
            "--input-type=commonjs",
            "--openssl-config=/dev/null",
        ]
        source = f"const configuration = {json.dumps(configuration)};{script}"
        # Node reads its own variables when it starts; the runner removes them.
        variables = {**environment, "NODE_USE_ENV_PROXY": "1"} if environment else {}
        os.execve(self._program, [self._path, *options, "--eval", source], variables)  # noqa: S606
        raise AssertionError("execve returned")
