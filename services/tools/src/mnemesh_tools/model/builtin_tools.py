"""The built-in tools of mnemesh's agents. Every organization has a copy of each; the orchestrator runs them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from typing import Self

from mnemesh_tools.model.tools import DEFAULT_RETURN_CHARS, DEFAULT_TIMEOUT_SECONDS, ToolSpec, ToolType


@dataclass(frozen=True, slots=True)
class BuiltinTools:
    """The definitions of the built-in tools of one release."""

    specs: tuple[ToolSpec, ...] = ()
    release: str = ""
    """A digest of the definitions."""

    @classmethod
    def load(cls) -> Self:
        """Returns the built-in tools of this release, from `builtin_tools.json`."""
        text = resources.files(__package__).joinpath("builtin_tools.json").read_text(encoding="utf-8")
        specs = tuple(
            ToolSpec(
                name=schema["name"],
                type=ToolType.BUILTIN,
                json_schema=json.dumps(schema, ensure_ascii=False),
                return_char_limit=DEFAULT_RETURN_CHARS,
                idempotent=True,
                timeout_seconds=DEFAULT_TIMEOUT_SECONDS,
            )
            for schema in json.loads(text)
        )
        return cls(specs, hashlib.sha256(text.encode()).hexdigest())
