"""The built-in tools in the list of the tools service are those that the orchestrator offers to models."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate_builtin_tools.py"


def test_list_of_built_in_tools_is_current() -> None:
    generator = runpy.run_path(str(SCRIPT))
    listed = generator["TARGET"].read_text(encoding="utf-8")
    assert listed == generator["rendered"](), "run scripts/generate_builtin_tools.py"
