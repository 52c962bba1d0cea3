"""Sources, values and processes of sandbox tests."""

import ast
import json
import textwrap
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from mnemesh_sandbox import Outcome, OutcomeStatus

Run = Callable[..., Coroutine[Any, Any, Outcome]]
MARK = "mnemesh_sandbox_test_mark"


def source_of(body: str, parameters: str = "") -> str:
    return f"def tool({parameters}):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"


def value_of(outcome: Outcome) -> Any:
    assert outcome.status is OutcomeStatus.SUCCESS, outcome
    try:
        return json.loads(outcome.text)
    except ValueError:  # in the words of Python
        return ast.literal_eval(outcome.text)


def processes_with(mark: str) -> list[str]:
    """Returns the processes whose command line contains `mark`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in command:
            found.append(f"{entry.parent.name}: {command}")
    return found


def children_running(script: str) -> list[str]:
    """Returns the children of this process that run `script`."""
    pids = [pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]
    return [line for line in processes_with(script) if line.partition(":")[0] in pids]
