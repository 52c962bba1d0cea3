"""Every metric is documented with its labels, and no other metric is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(mnemesh_\w+)` \|([^|]*)\|", re.MULTILINE)
SUFFIXES = {"Counter": "_total", "Gauge": "", "Histogram": ""}


def defined() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the exposed name and the labels of each metric in the code."""
    for path in (*ROOT.glob("services/*/src/**/*.py"), *ROOT.glob("libs/*/src/**/*.py")):
        text = path.read_text()
        if "mnemesh_kit.metrics" not in text and path.name != "metrics.py":
            continue
        for node in ast.walk(ast.parse(text)):
            kind = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if isinstance(node, ast.Call) and kind in SUFFIXES:
                name, labels = ast.literal_eval(node.args[0]), ()
                if kind != "Gauge" and len(node.args) > 2:
                    labels = tuple(ast.literal_eval(node.args[2]))
                yield name + SUFFIXES[kind], labels


def test_operations_lists_every_metric() -> None:
    section = (ROOT / "docs" / "operations.md").read_text().split("\n### Metrics\n")[1].split("\n### ")[0]
    documented = {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in ROW.findall(section)}
    assert documented == dict(defined())
