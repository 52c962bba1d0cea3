"""What a release consists of has one version."""

import tomllib
from pathlib import Path
from typing import Final

from scripts.set_version import version_lines

ROOT: Final = Path(__file__).parents[2]


def test_packages_chart_and_changelog_have_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    found = {(path, each) for path, line in version_lines().items() for each in line.findall(path.read_text())}
    assert {each for _, each in found} == {version}
    assert len({path for path, _ in found}) == len(version_lines()), "a file without a version"
    first = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ["))
    assert first.startswith(f"## [{version}]")
