"""System prompts by key: the built-in ones, and those in a directory of the operator's own."""

import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from engram_kit.errors import NotFound

_KEY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SUFFIX: Final = ".txt"


class Prompts:
    """The system prompts that agents can be made with."""

    def __init__(self, directory: Path) -> None:
        """Looks for custom prompts in `directory`, as `<key>.txt`; makes it where it is absent."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory

    def get(self, key: str) -> str:
        """The prompt under a key. Built-in prompts come first; custom ones are read anew each time.

        Raises:
            NotFound: there is neither. Metadata: resource_id.
        """
        builtin = _builtin().get(key)
        if builtin is not None:
            return builtin
        # A key is a name, never a path: nothing outside of the directory can be asked for.
        path = self._directory / f"{key}{_SUFFIX}"
        if _KEY.fullmatch(key) and path.is_file():
            return path.read_text(encoding="utf-8")
        raise NotFound(f"There is no system prompt {key[:100]!r}.", resource_id=key[:100])

    def available(self) -> tuple[str, ...]:
        """Every key, by the alphabet."""
        custom = (path.stem for path in self._directory.glob(f"*{_SUFFIX}") if _KEY.fullmatch(path.stem))
        return tuple(sorted({*_builtin(), *custom}))


@cache
def _builtin() -> dict[str, str]:
    folder = resources.files(__package__) / "templates"
    return {
        file.name.removesuffix(_SUFFIX): file.read_text(encoding="utf-8").removesuffix("\n")
        for file in folder.iterdir()
        if file.name.endswith(_SUFFIX)
    }
