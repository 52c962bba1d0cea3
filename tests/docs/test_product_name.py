"""The earlier product name occurs only in the files that docs/decisions/product-name.md explains."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
OLD = "en" + "gram"
SKIPPED = {".git", "node_modules", "__pycache__", "build", "data", "uv.lock"}
EXPECTED = {
    "docs/decisions/product-name.md",
    "docs/operations.md",
    "libs/mnemesh-cli/src/mnemesh_cli/supervisor/data_lock.py",
    "services/archival/src/mnemesh_archival/store/migrations/versions/0005_renamed_embedders.py",
    "services/archival/src/mnemesh_archival/vectors/points.py",
    "libs/mnemesh-kit/src/mnemesh_kit/sealing.py",
    "services/orchestrator/src/mnemesh_orchestrator/store/migrations/versions/0011_renamed_models.py",
    "services/recall/src/mnemesh_recall/store/migrations/versions/0001_recall.py",
    "services/recall/src/mnemesh_recall/store/migrations/versions/0002_words.py",
}


def test_earlier_name_occurs_only_in_the_listed_files() -> None:
    found = set()
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith(".")]
        for name in files:
            path = Path(folder, name)
            relative = path.relative_to(ROOT).as_posix()
            if name in SKIPPED or "tests/" in relative or path.stat().st_size > 2_000_000:
                continue
            if OLD in path.read_bytes().decode(errors="ignore").lower():
                found.add(relative)
    assert found == EXPECTED
