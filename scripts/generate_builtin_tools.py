"""Writes the built-in tools to a file of the tools service, because services do not import each other."""

import json
from pathlib import Path

from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS

TARGET = Path(__file__).parents[1] / "services" / "tools" / "src" / "mnemesh_tools" / "model" / "builtin_tools.json"


def rendered() -> str:
    """Returns the content of the file."""
    schemas = [
        {"name": schema.name, "description": schema.description, "parameters": schema.parameters}
        for _, schema in sorted(BUILTIN_SCHEMAS.items())
    ]
    return json.dumps(schemas, ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(rendered(), encoding="utf-8")
