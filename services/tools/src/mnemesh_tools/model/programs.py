"""Programs: code that is executed once, and the functions that it can call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from mnemesh_kit.errors import InvalidArgument, Unimplemented
from mnemesh_kit.text import require_text

from mnemesh_tools.model.executions import require_environment
from mnemesh_tools.model.support import ServerSupport, require_language
from mnemesh_tools.model.tools import DEFAULT_TIMEOUT_SECONDS, SourceType
from mnemesh_tools.schema import is_name

MAX_CODE_CHARS: Final = 250_000
MAX_TOOLS: Final = 200
MAX_CALLS: Final = 100
"""The calls of one program; further ones fail."""
_MAX_PARAMETERS: Final = 1_000


class CodeLanguage(Enum):
    """The language of a program."""

    PYTHON = "python"
    JAVASCRIPT = "javascript"
    TYPESCRIPT = "typescript"
    R = "r"
    JAVA = "java"


@dataclass(frozen=True, slots=True)
class Program:
    """Code that is executed once."""

    code: str
    language: CodeLanguage = CodeLanguage.PYTHON
    environment: Mapping[str, str] = field(default_factory=dict)
    network_hosts: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    tools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The functions that it can call, with the names of their parameters."""


def require_valid_program(program: Program, support: ServerSupport) -> None:
    """Checks a program before it is executed.

    Raises:
        InvalidArgument: A field breaks its rule.
        Unimplemented: The service does not execute the language.
        ToolRequirementsUnmet: This server does not execute the language.
    """
    if program.language in (CodeLanguage.R, CodeLanguage.JAVA):
        raise Unimplemented(
            f"Code in {program.language.value} cannot be executed. Use python, javascript or typescript.",
            field="language",
        )
    source_type = SourceType.PYTHON if program.language is CodeLanguage.PYTHON else SourceType.TYPESCRIPT
    require_language(source_type, support, "language")
    require_text(program.code, "code", max_chars=MAX_CODE_CHARS)
    require_environment(program.environment)
    if len(program.tools) > MAX_TOOLS:
        raise InvalidArgument(f"tools must have at most {MAX_TOOLS} values.", field="tools")
    for name, parameters in program.tools.items():
        if not is_name(name) or len(parameters) > _MAX_PARAMETERS:
            raise InvalidArgument(f"tools: '{name[:100]}' is not a function that a program can call.", field="tools")


def program_seconds(program: Program) -> float:
    """Returns the seconds that a program may take.

    Raises:
        InvalidArgument: The limit of the caller is not positive.
    """
    if program.timeout_seconds is None:
        return DEFAULT_TIMEOUT_SECONDS
    if program.timeout_seconds <= 0:
        raise InvalidArgument("timeout must be greater than 0.", field="timeout")
    return min(program.timeout_seconds, DEFAULT_TIMEOUT_SECONDS)
