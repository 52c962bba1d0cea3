"""The id under which a process holds leases."""

from pathlib import Path

import pytest
from mnemesh_kit.config import StartupError
from mnemesh_orchestrator.runs.worker import Instance


async def test_next_process_has_the_same_id(tmp_path: Path) -> None:
    path = tmp_path / "owner"
    first = Instance(path, alone=True)
    await first.close()
    second = Instance(path, alone=True)
    assert second.id == first.id
    assert first.id.startswith("instance-")
    await second.close()


async def test_two_concurrent_processes_have_different_ids(tmp_path: Path) -> None:
    path = tmp_path / "owner"
    first = Instance(path, alone=False)
    second = Instance(path, alone=False)
    assert second.id != first.id
    await second.close()
    with pytest.raises(StartupError, match="MNEMESH_DATA_DIR"):
        Instance(path, alone=True)
    await first.close()
    third = Instance(path, alone=False)
    assert third.id == first.id, "the name of the one that was second is not kept"
    await third.close()
