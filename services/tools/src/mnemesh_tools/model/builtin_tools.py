"""The built-in tools of mnemesh's agents, as every organization has them; the orchestrator carries them out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from typing import Self

from mnemesh_tools.model.definitions import settled
from mnemesh_tools.model.tools import ToolSpec, ToolType


@dataclass(frozen=True, slots=True)
class Builtins:
    """Definitions that come along with a release of the service."""

    specs: tuple[ToolSpec, ...] = ()
    release: str = ""
    """Differs where a definition does."""

    @classmethod
    def shipped(cls) -> Self:
        """Those of this release."""
        text = resources.files(__package__).joinpath("builtin_tools.json").read_text(encoding="utf-8")
        specs = tuple(
            settled(ToolSpec(type=ToolType.BUILTIN, json_schema=json.dumps(schema), idempotent=True))
            for schema in json.loads(text)
        )
        return cls(specs, hashlib.sha256(text.encode()).hexdigest())
