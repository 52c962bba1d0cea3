"""The paths of docs/code-map.md exist, and it lists every folder of the source tree."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "code-map.md").read_text()
PATHS = sorted(set(re.findall(r"`([a-z.-]+/[\w/.-]*)`", PAGE)))
SERVICES = sorted(path.parent for path in ROOT.glob("services/*/src/*/wiring.py"))
ORCHESTRATOR = ROOT / "services/orchestrator/src/mnemesh_orchestrator"
COMMON = {"model", "usecases", "rpc", "rpc/convert", "clients", "ports", "store", "store/base", "store/sql"}


@pytest.mark.parametrize("path", PATHS)
def test_every_path_exists(path: str) -> None:
    roots = (ROOT, ORCHESTRATOR, *SERVICES)
    assert any((root / path).exists() or (root / f"{path}.py").exists() for root in roots), path


def test_every_folder_is_listed() -> None:
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    tops = {f"{path.name}/" for path in folders if (path / "README.md").exists()}
    libraries = {str(path.relative_to(ROOT)) for path in ROOT.glob("libs/*") if path.is_dir()}
    missing = sorted(folder for folder in (tops | libraries) if f"`{folder}`" not in PAGE)
    assert not missing


def test_every_folder_of_a_service_is_listed() -> None:
    missing = []
    for package in SERVICES:
        for folder in sorted({module.parent for module in package.rglob("*.py")} - {package}):
            name = folder.relative_to(package).as_posix()
            if name not in COMMON and "migrations" not in name and f"`{folder.relative_to(ROOT)}`" not in PAGE:
                missing.append(str(folder.relative_to(ROOT)))
    assert not missing
