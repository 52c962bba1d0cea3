"""The example package of docs/processors.md behaves as documented."""

import re
import sys
import tomllib
from importlib import invalidate_caches
from pathlib import Path

import pytest
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL as ME
from mnemesh_orchestrator.processors import (
    INPUT_GROUP,
    MEMORY_ORDER,
    TOOL_RESULT_GROUP,
    InputFacts,
    Refused,
    ToolResultFacts,
    load,
)
from mnemesh_testkit.fakes.fake_distributions import install

PAGE = (Path(__file__).parents[2] / "docs" / "processors.md").read_text()
INPUT = InputFacts("org-other", ME.subject_id, "agent-1", "conv-1", "run-1", 0, 0, "user")


async def test_example_package_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    points = tomllib.loads(toml)["project"]["entry-points"]
    assert set(points) == {INPUT_GROUP, TOOL_RESULT_GROUP}
    install(tmp_path, "acme_mnemesh", code, {})
    text = "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in each.items()) for group, each in points.items()
    )
    (tmp_path / "acme_mnemesh-1.0.dist-info" / "entry_points.txt").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    invalidate_caches()
    try:
        (cards,) = load(INPUT_GROUP, ("cards",), "MNEMESH_INPUT_PROCESSORS")
        (results,) = load(TOOL_RESULT_GROUP, ("cards",), "MNEMESH_TOOL_RESULT_PROCESSORS")
    finally:
        sys.modules.pop("acme_mnemesh", None)
    assert cards.processor.order < MEMORY_ORDER
    assert await cards.processor.process("It is 4111 1111 1111 1111.", INPUT) == "It is [card]."
    with pytest.raises(Refused):
        await cards.processor.process("x" * 100_001, INPUT)
    ours = ("org-other", ME.subject_id, "agent-1", "conv-1", "run-1", "step-1", "call_1")
    for tool, expected in (("lookup", "[card]"), ("payment_lookup", "4111111111111111")):
        facts = ToolResultFacts(*ours, tool, {}, True)
        assert await results.processor.process("4111111111111111", facts) == expected
