"""Builds and directories of packages that organizations share, without uv."""

import asyncio
import os
import stat
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from mnemesh_sandbox import Outcome, OutcomeStatus, Task
from mnemesh_testkit.timeouts import scaled
from mnemesh_tools.errors import ToolRequirementsUnmet
from mnemesh_tools.model.packages import Ecosystem, PackageSet
from mnemesh_tools.packages import PackageCache, PackagesUnavailable, _output
from mnemesh_tools.store.tools import ToolStore
from mnemesh_tools.usecases.packages import PackageService
from mnemesh_tools.usecases.slots import FairSlots
from mnemesh_types.tools import Requirement

_TASK = Task("", "run_uv")


class FakeClock:
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


class FakeBuilder:
    """Builds at once, except what is named `slow…`, which waits."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.resolved: list[str] = []
        self.installed: list[str] = []

    async def resolve(self, lines: Sequence[str], output: Path) -> str:
        self.resolved.append(lines[0])
        if lines[0].startswith("slow"):
            await self.go.wait()
        if lines[0].startswith("bad"):
            raise PackagesUnavailable("no such package")
        return lines[0]

    async def install(self, lock: str, output: Path) -> Path:
        self.installed.append(lock)
        site = output / "site"
        site.mkdir()
        (site / "module.py").write_text("x = 1")
        return site


def _service(tmp_path: Path, builder: FakeBuilder) -> PackageService:
    return PackageService(
        cast("ToolStore", None),
        cast("Any", FakeClock()),
        {Ecosystem.PIP: builder},
        PackageCache(tmp_path / "packages", 1 << 30),
        wait_seconds=10,
        slots=FairSlots(2, 1, 10),
    )


async def _use(service: PackageService, organization_id: str, name: str) -> str:
    async with service.hold(organization_id, PackageSet(Ecosystem.PIP, (Requirement(name, "1.0"),)), None) as directory:
        assert directory is not None
        return (directory / "module.py").read_text()


async def test_builds_of_one_organization_do_not_hold_up_another_one(tmp_path: Path) -> None:
    """Also if both need the same packages, which wait for the turn of the first."""
    builder = FakeBuilder()
    service = _service(tmp_path, builder)
    names = ["slow1", "slow2", "popular"]
    hostile = [asyncio.create_task(_use(service, "a", name)) for name in names]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(_use(service, "b", "popular"), scaled(60)) == "x = 1"
    assert [line for line in builder.resolved if line.startswith("slow")] == ["slow1==1.0"]
    builder.go.set()
    assert await asyncio.wait_for(asyncio.gather(*hostile), scaled(60)) == ["x = 1"] * 3
    assert builder.installed.count("popular==1.0") == 1
    await service.close()


async def test_a_failure_that_is_remembered_does_not_grow(tmp_path: Path) -> None:
    service = _service(tmp_path, FakeBuilder())

    async def depth() -> int:
        with pytest.raises(ToolRequirementsUnmet) as caught:
            await _use(service, "a", "bad")
        return len(caught.traceback)

    await depth()
    assert await depth() == await depth()
    await service.close()


async def test_a_failed_build_of_one_organization_is_not_that_of_another(tmp_path: Path) -> None:
    builder = FakeBuilder()
    service = _service(tmp_path, builder)
    for organization_id in ("a", "a", "b"):
        with pytest.raises(ToolRequirementsUnmet):
            await _use(service, organization_id, "bad")
    assert builder.resolved == ["bad==1.0", "bad==1.0"], "each organization tried once"
    await service.close()


async def test_what_a_build_leaves_belongs_to_the_service(tmp_path: Path) -> None:
    """The uid of a build is that of later tools, of any organization."""
    cache = PackageCache(tmp_path / "packages", 1 << 30)
    output = cache.new_directory()
    outside = tmp_path / "outside"
    outside.write_text("secret")
    outside.chmod(0o600)
    site = output / "site"
    (site / "hidden").mkdir(parents=True)
    (site / "hidden" / "file").write_bytes(b"x" * 50_000)
    (site / "program").write_text("#!/bin/sh")
    (site / "link").symlink_to(outside)
    if os.geteuid() == 0:
        for path in (site, *site.rglob("*")):
            os.chown(path, 61_000, 61_000, follow_symlinks=False)
    (site / "program").chmod(0o4755)
    (site / "hidden").chmod(0)
    await cache.publish("key", site)
    with cache.hold("key") as directory:
        assert (directory / "hidden" / "file").stat().st_size == 50_000
        assert {path.lstat().st_uid for path in (directory, *directory.rglob("*"))} == {os.geteuid()}
        if os.geteuid() == 0:
            assert not (directory / "program").stat().st_mode & stat.S_ISUID
    assert stat.S_IMODE(outside.stat().st_mode) == 0o600, "links are not followed"
    assert (cache.size("key") or 0) > 50_000


async def test_eviction_removes_all_of_a_directory(tmp_path: Path) -> None:
    cache = PackageCache(tmp_path / "packages", 1)
    for key in ("old", "new"):
        site = cache.new_directory() / "site"
        (site / "sub").mkdir(parents=True)
        (site / "sub" / "file").write_bytes(b"x" * 9_000)
        await cache.publish(key, site)
        cache.discard(site.parent)
    assert (cache.size("old"), cache.size("new") is not None) == (None, True)
    assert [path.name for path in (tmp_path / "packages").iterdir()] == ["new"]


@pytest.mark.parametrize("text", ["", "[0, 1", "7", "[1]", '{"a": 1}', "[" * 5_000])
def test_answer_of_a_build_that_cannot_be_read(text: str) -> None:
    with pytest.raises(PackagesUnavailable):
        _output("uv", _TASK, Outcome(OutcomeStatus.SUCCESS, text, "", "", 0.1), [], 1)


def test_answer_of_a_build_is_text() -> None:
    answer = Outcome(OutcomeStatus.SUCCESS, '[0, "a\\u0000\\ud800", ""]', "", "", 0.1)
    assert _output("uv", _TASK, answer, [], 1).encode()
    assert "\0" not in _output("uv", _TASK, answer, [], 1)
