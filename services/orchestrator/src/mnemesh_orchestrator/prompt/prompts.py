"""System prompts by key: the built-in ones, and those in a directory of the operator."""

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

import structlog
from mnemesh_kit.errors import NotFound

from mnemesh_orchestrator.model.agents import MAX_SYSTEM_PROMPT, SystemPrompt

_log = structlog.get_logger("mnemesh.prompts")

_KEY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SUFFIX: Final = ".txt"
_MOST_BYTES_OF_A_CHARACTER: Final = 4


class Prompts:
    """The system prompts that agents can be created with."""

    def __init__(self, directory: Path) -> None:
        """Reads custom prompts from `directory`, as `<key>.txt`. The directory is created if it does not exist."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory

    def get(self, key: str) -> SystemPrompt:
        """Returns the prompt under a key. Built-in prompts take precedence. Custom prompts are read again each time.

        Raises:
            NotFound: no prompt has the key, or its file cannot be used as a prompt. Metadata: resource_id.
        """
        builtin = _builtin().get(key)
        if builtin is not None:
            return builtin
        # A key is a name and never a path, so nothing outside of the directory can be read.
        if _KEY.fullmatch(key) is None:
            raise _missing(key)
        return self._read(key)

    def all(self) -> tuple[SystemPrompt, ...]:
        """Returns all prompts ordered by key. A file that cannot be used as a prompt is left out and logged."""
        custom = {prompt.key: prompt for prompt in self._custom()}
        return tuple(prompt for _, prompt in sorted((custom | dict(_builtin())).items()))

    def _custom(self) -> Iterator[SystemPrompt]:
        for path in self._directory.glob(f"*{_SUFFIX}"):
            key = path.name.removesuffix(_SUFFIX)
            if _KEY.fullmatch(key) and key not in _builtin():
                try:
                    yield self._read(key)
                except NotFound as error:
                    _log.warning("system_prompt_file_unusable", key=key, error=error.message)

    def _read(self, key: str) -> SystemPrompt:
        path = self._directory / f"{key}{_SUFFIX}"
        try:
            if not path.is_file():
                raise _missing(key)
            is_long = path.stat().st_size > MAX_SYSTEM_PROMPT * _MOST_BYTES_OF_A_CHARACTER
            text = "" if is_long else path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise NotFound(f"The file of system prompt {key!r} cannot be read as UTF-8.", resource_id=key) from error
        if is_long or len(text) > MAX_SYSTEM_PROMPT or "\0" in text:
            raise NotFound(
                f"The file of system prompt {key!r} is longer than {MAX_SYSTEM_PROMPT} characters, or has a NUL.",
                resource_id=key,
            )
        return SystemPrompt(key, text, built_in=False)


def _missing(key: str) -> NotFound:
    known = ", ".join(_builtin())
    return NotFound(f"There is no system prompt {key[:100]!r}. The built-in ones are {known}.", resource_id=key[:100])


@cache
def _builtin() -> dict[str, SystemPrompt]:
    folder = resources.files(__package__) / "templates"
    texts = {
        file.name.removesuffix(_SUFFIX): file.read_text(encoding="utf-8").removesuffix("\n")
        for file in folder.iterdir()
        if file.name.endswith(_SUFFIX)
    }
    return {key: SystemPrompt(key, text, built_in=True) for key, text in texts.items()}
