"""What the sandbox runs: one task, or a program that runs for a longer time, and how it is supervised."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from mnemesh_sandbox.inside import watch
from mnemesh_sandbox.inside.plan import OUTPUT_DIRECTORY


@dataclass(frozen=True, slots=True)
class BlockProperties:
    """What a tool can read of a memory block besides its value."""

    description: str | None = None
    limit: int | None = None
    """The maximum length of the value in characters."""


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent as a tool sees it in `agent_state`."""

    agent_id: str
    name: str
    blocks: Mapping[str, str]
    """The values of the blocks by label. The tool can change them."""
    properties: Mapping[str, BlockProperties] = field(default_factory=dict)
    """The properties of blocks by label."""

    def to_json(self) -> dict[str, Any]:
        """Returns the agent as the runner reads it."""
        properties = {label: asdict(found) for label, found in self.properties.items()}
        return {"id": self.agent_id, "name": self.name, "blocks": dict(self.blocks), "properties": properties}


class Language(Enum):
    """The language of a source."""

    PYTHON = "python"
    JAVASCRIPT = "javascript"
    TYPESCRIPT = "typescript"


@dataclass(frozen=True, slots=True)
class Task:
    """One call of a function in a source, or one program."""

    source: str
    """In JavaScript and TypeScript, the function of a tool is exported as `inside.node.EXPORT`, and the value of a
    program is its default export."""
    function: str
    """The function; for a program the name that its errors show."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further environment variables, which override the others. Their values are removed from the outcome."""
    agent: AgentView | None = None
    content: Path | None = None
    """A file whose bytes a function in Python receives as its parameter `content`. The task cannot reach the file."""
    language: Language = Language.PYTHON
    parameters: tuple[str, ...] = ()
    """The parameters in their order, which JavaScript and TypeScript need."""
    takes_object: bool = False
    """The function in JavaScript or TypeScript has one parameter, which is the object of all arguments."""
    definitions: Mapping[str, Any] = field(default_factory=dict)
    """JSON schemas of types that a source in Python can name without defining them, by the name of the type."""
    is_program: bool = False
    """The source is executed from its beginning to its end. The result is the value of its last expression."""
    tools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The functions that a program can call outside, with the names of their parameters."""

    def to_json(self) -> bytes:
        """Returns the task as the runner reads it: one line of JSON. The bytes of `content` follow it."""
        return (
            json.dumps(
                {
                    "source": self.source,
                    "name": self.function,
                    "arguments": dict(self.arguments),
                    "environment": {**self.environment, **self.secrets},
                    "agent": None if self.agent is None else self.agent.to_json(),
                    "has_content": self.content is not None,
                    "language": self.language.value,
                    "parameters": self.parameters,
                    "takes_object": self.takes_object,
                    "definitions": dict(self.definitions),
                    "is_program": self.is_program,
                    "tools": dict(self.tools),
                }
            ).encode()
            + b"\n"
        )


class OutcomeStatus(Enum):
    """The way in which a task ended."""

    SUCCESS = "success"
    ERROR = "error"
    """The tool raised an exception, or ended without a readable result."""
    TIMED_OUT = "timed_out"
    KILLED = "killed"
    """The tool reached its limit of processor time or memory, or a signal killed it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The output of a task. Its texts contain no NUL characters and no lone surrogates."""

    status: OutcomeStatus
    text: str
    """The returned value as text, or the error."""
    stdout: str
    stderr: str
    duration: float
    """The duration in seconds, with the start of the process."""
    chars: int = 0
    """The length of the returned text before the sandbox cut it."""
    changed_blocks: Mapping[str, str] = field(default_factory=dict)
    images: tuple[tuple[str, bytes], ...] = ()
    """The media type and the content of each image that the tool returned."""


def clean(text: str) -> str:
    """Returns `text` with NUL characters and lone surrogates replaced, as `mnemesh_kit.text.storable` does."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


PROGRAM_MEASURE_SECONDS: Final = 0.25
"""The time between measurements of a program, which may run for hours. Without a cgroup, its memory is measured."""
_SYSTEM_PATH: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_FUNCTION: Final = "start"
_SOURCE: Final = """
import os
import sys


def start(command, arguments, directory):
    if directory:
        os.chdir(directory)
    os.environ.setdefault("HOME", os.getcwd())
    try:
        os.execvp(command, [command, *arguments])
    except OSError as error:
        reason = "it does not exist" if isinstance(error, FileNotFoundError) else error.strerror
        print(f"The program {command!r} cannot be started: {reason}.", file=sys.stderr, flush=True)
        os._exit(127)
"""


@dataclass(frozen=True, slots=True)
class Supervision:
    """How a task is supervised."""

    measure_seconds: float = watch.INTERVAL
    is_confined: bool = True
    """False: it runs without layers and without limits."""
    starts_node: bool = False
    """It becomes a program in Node, which reserves more addresses than it uses."""


AS_TOOL: Final = Supervision()


@dataclass(frozen=True, slots=True)
class Program:
    """A program with its arguments and its environment."""

    command: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    path: Sequence[str] = ()
    """Directories that come before those of the system in PATH."""
    home: str | None = None
    """Its home on the host; None for a new directory that is removed after it."""
    in_node: bool = False
    """It is executed by Node."""

    def task(self, *, confined: bool, has_home: bool) -> Task:
        """Returns the task that becomes the program."""
        interpreter = str(Path(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)).parent)
        path = ":".join(dict.fromkeys((*self.path, interpreter, *_SYSTEM_PATH)))
        directory = None if not has_home else OUTPUT_DIRECTORY if confined else self.home
        arguments = {"command": self.command, "arguments": list(self.arguments), "directory": directory}
        return Task(_SOURCE, _FUNCTION, arguments, {"PATH": path, "LANG": "C.UTF-8", **self.environment})
