"""Every distribution has complete metadata, and all of them support the same versions of Python."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECTS = sorted(
    path.parent for pattern in ("libs/*", "services/*") for path in ROOT.glob(f"{pattern}/pyproject.toml")
)
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def metadata(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda folder: folder.name)
def test_metadata(folder: Path) -> None:
    project = metadata(folder)
    assert project["description"].endswith(".")
    assert project["license"] == "Apache-2.0"
    assert project["authors"]
    assert (folder / project["readme"]).exists()
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    versions = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert tuple(versions) == VERSIONS


@pytest.mark.parametrize("folder", [ROOT, *PROJECTS], ids=lambda folder: folder.name)
def test_supported_versions_of_python(folder: Path) -> None:
    assert metadata(folder)["requires-python"] == ">=3.11,<3.15"
    assert metadata(folder)["version"] == metadata(ROOT)["version"]


def test_the_environment_is_created_with_a_supported_version() -> None:
    script = (ROOT / "scripts" / "make_venv.sh").read_text()
    assert "(3, 11) <= sys.version_info[:2] < (3, 15)" in script
