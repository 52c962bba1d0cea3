"""The alert rules and the dashboard use metrics and labels that exist, in expressions that Prometheus accepts."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.docs.test_metrics import defined

DIRECTORY: Final = Path(__file__).parents[2] / "deploy/monitoring"
GIVEN: Final = {"job", "instance", "le"}
"""Labels that Prometheus adds, and that of the buckets of histograms."""
SELECTOR: Final = re.compile(r"(mnemesh_\w+)(?:\{([^}]*)\})?")
GROUPING: Final = re.compile(r"\bby \(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DIRECTORY / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [each for each in json.loads((DIRECTORY / "dashboard.json").read_text())["panels"] if each["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Yields each expression with its name, and the variables of the dashboard replaced."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "5m").replace("$job", "mnemesh")
            yield f"{panel['title']}, {target['refId']}", text


def exposed() -> dict[str, set[str]]:
    """Returns the labels of each series by its name. A histogram has three names."""
    series = {}
    for name, labels in defined():
        for suffix in ("", "_bucket", "_count", "_sum") if name.endswith("_seconds") else ("",):
            series[name + suffix] = set(labels)
    return series


def test_every_expression_uses_metrics_and_labels_that_exist() -> None:
    known = exposed()
    for name, expression in expressions():
        found = SELECTOR.findall(expression)
        assert found or "up{" in expression or "process_" in expression, name
        labels = set().union(*(known[metric] for metric, _ in found)) | GIVEN
        for metric, selector in found:
            assert set(re.findall(r"(\w+)\s*[!=]", selector)) <= known[metric] | GIVEN, (name, metric)
        for grouping in GROUPING.findall(expression):
            assert {each.strip() for each in grouping.split(",")} <= labels, name


def test_every_alert_says_what_happens_and_what_to_do() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert all(rule["annotations"][key].endswith(".") for key in ("summary", "action")), rule["alert"]


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


@pytest.mark.full
def test_prometheus_accepts_every_expression_and_alerts_when_it_should(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (on Debian, apt-get install prometheus)")
    recorded = [{"record": f"each:{index}", "expr": text} for index, (_, text) in enumerate(expressions())]
    file = tmp_path / "dashboard.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": recorded}]}))
    checked = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = subprocess.run(
        [promtool, "test", "rules", str(DIRECTORY / "alerts_test.yaml")], capture_output=True, text=True, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    # Each alert fires in a test.
    text = (DIRECTORY / "alerts_test.yaml").read_text()
    assert [rule["alert"] for rule in rules() if rule["alert"] not in text] == []
