"""Folders that follow directories: passes of a comparison, and the watch with the events of the system."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mnemesh.files.v1 import files_pb2
from mnemesh_cli.directories import watch
from mnemesh_cli.directories.sync import FolderSync, IgnoreRules, Pass, SyncReport
from mnemesh_cli.directories.watch import Watch
from mnemesh_client.errors import FailedPrecondition, MnemeshError, NotFound
from mnemesh_testkit.mesh.faulty_proxy import ExecuteThenTimeout, Unavailable
from mnemesh_testkit.mesh.in_process import FilesMesh

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FilesMesh]:
    """The services of this module."""
    async with FilesMesh(tmp_path_factory.mktemp("files"), patience=0.0, max_file_mb=1) as running:
        yield running


@dataclass
class Synced:
    """A directory and the folder that follows it. The clock of the passes stands still."""

    mesh: FilesMesh
    root: Path
    folder: files_pb2.Folder
    now: float = 100.0
    reports: list[SyncReport] = field(default_factory=list)

    def sync(self, *, deletes: bool = False, settle_seconds: float = 0.0) -> FolderSync:
        """Returns passes that know nothing yet, as after a start."""
        return FolderSync(
            self.mesh.client,
            self.folder.id,
            self.root,
            IgnoreRules.of_root(),
            self.reports.append,
            deletes=deletes,
            settle_seconds=settle_seconds,
            clock=lambda: self.now,
        )

    def write(self, path: str, content: str) -> None:
        """Writes a file."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(content)

    async def pass_(self, sync: FolderSync) -> list[str]:
        """Runs one pass. Returns what it did."""
        self.reports.clear()
        await sync.run()
        return sorted(f"{report.done} {report.path}" for report in self.reports)

    async def remote(self) -> dict[str, str]:
        """Returns name and content of the files of the folder."""
        files = self.mesh.client.files
        return {file.name: (await files.read(file.id)).decode() async for file in files.list(folder_id=self.folder.id)}


@pytest_asyncio.fixture(loop_scope="module")
async def synced(mesh: FilesMesh, tmp_path: Path, request: pytest.FixtureRequest) -> Synced:
    """An empty directory and an empty folder."""
    return Synced(mesh, tmp_path, await mesh.client.folders.create(request.node.name))


async def test_folder_becomes_equal_to_the_directory(synced: Synced) -> None:
    synced.write("a.md", "1")
    synced.write("guide/b.md", "2")
    synced.write(".env", "secret")
    sync = synced.sync(deletes=True)

    assert await synced.pass_(sync) == ["created a.md", "created guide/b.md"]
    assert await synced.remote() == {"a.md": "1", "guide--b.md": "2"}
    assert await synced.pass_(sync) == []

    synced.write("a.md", "changed")
    (synced.root / "guide" / "b.md").rename(synced.root / "b.md")
    assert await synced.pass_(sync) == ["renamed b.md", "replaced a.md"]
    assert await synced.remote() == {"a.md": "changed", "b.md": "2"}

    (synced.root / "a.md").unlink()
    assert await synced.pass_(sync) == ["deleted a.md"]
    assert await synced.remote() == {"b.md": "2"}


async def test_restart_uploads_only_what_changed_meanwhile(synced: Synced) -> None:
    for name in ("same.md", "old.md", "gone.md", "moved.md"):
        synced.write(name, name)
    await synced.pass_(synced.sync())
    synced.write("old.md", "new")
    synced.write("more.md", "more")
    (synced.root / "gone.md").unlink()
    (synced.root / "moved.md").rename(synced.root / "elsewhere.md")
    calls = synced.mesh.proxy.calls["UploadFile"]

    assert await synced.pass_(synced.sync()) == ["created more.md", "renamed elsewhere.md", "replaced old.md"]
    assert synced.mesh.proxy.calls["UploadFile"] - calls == 3
    assert "gone.md" in await synced.remote()
    assert await synced.pass_(synced.sync(deletes=True)) == ["deleted gone.md"]


async def test_files_that_were_uploaded_by_hand_are_not_deleted(synced: Synced) -> None:
    await synced.mesh.client.files.upload(synced.folder.id, b"x", name="by-hand.md")
    await synced.mesh.client.files.upload(synced.folder.id, b"x", name="same.md")
    synced.write("same.md", "y")

    assert await synced.pass_(synced.sync(deletes=True)) == ["replaced same.md"]
    assert await synced.remote() == {"by-hand.md": "x", "same.md": "y"}


async def test_file_is_uploaded_when_it_is_complete(synced: Synced) -> None:
    sync = synced.sync(deletes=True, settle_seconds=0.5)
    synced.write("a.md", "half of")
    assert not (await sync.run()).is_settled
    synced.write("a.md", "half of a sentence")
    synced.now += 0.6
    assert not (await sync.run()).is_settled
    synced.now += 0.6
    assert (await sync.run()).is_settled
    assert await synced.remote() == {"a.md": "half of a sentence"}

    # An editor removes the file before it writes the new one.
    (synced.root / "a.md").unlink()
    assert not (await sync.run()).is_settled
    synced.write("a.md", "new")
    await sync.run()
    synced.now += 0.6
    assert [await synced.pass_(sync), await synced.remote()] == [["replaced a.md"], {"a.md": "new"}]


async def test_refused_file_is_reported_once_until_it_changes(synced: Synced) -> None:
    sync = synced.sync()
    synced.write("large.md", "x" * 1_100_000)
    synced.write("a\x01b.md", "bad name")
    synced.write("good.md", "x")

    assert await synced.pass_(sync) == ["created good.md", "refused a\x01b.md", "refused large.md"]
    assert await synced.pass_(sync) == []
    synced.write("large.md", "small")
    assert await synced.pass_(sync) == ["created large.md"]
    synced.now += 1000
    assert await synced.pass_(sync) == ["refused a\x01b.md"], "the limits of a server can be raised"


async def test_unreadable_directory_deletes_nothing(synced: Synced, monkeypatch: pytest.MonkeyPatch) -> None:
    synced.write("sub/deep/a.md", "1")
    await synced.sync().run()
    scandir = os.scandir

    def refusing(path: str | Path) -> object:
        if Path(path).name == "sub":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refusing)
        result = await synced.sync(deletes=True).run()

    assert result.unreadable == {"sub": "Permission denied"}
    assert await synced.remote() == {"sub--deep--a.md": "1"}


async def test_directory_that_is_gone_deletes_nothing(synced: Synced) -> None:
    root = synced.root / "mount"
    synced.root = root
    synced.write("a.md", "1")
    sync = synced.sync(deletes=True)
    await sync.run()
    (root / "a.md").unlink()
    root.rmdir()

    with pytest.raises(FailedPrecondition, match="cannot be read"):
        await sync.run()
    assert await synced.remote() == {"a.md": "1"}


async def test_deleted_folder_ends_the_watch(synced: Synced) -> None:
    synced.write("a.md", "1")
    await synced.mesh.client.folders.delete(synced.folder.id)

    with pytest.raises(NotFound):
        await synced.sync().run()


async def test_lost_answer_leaves_no_duplicate(synced: Synced) -> None:
    """The client gives up although the server has stored the file."""
    synced.write("a.md", "1")
    sync = synced.sync()
    synced.mesh.proxy.inject("UploadFile", ExecuteThenTimeout())
    with pytest.raises(MnemeshError):
        await sync.run()

    assert await synced.pass_(sync) == []
    assert await synced.remote() == {"a.md": "1"}


class Watched:
    """A watch that runs, and what it reported."""

    def __init__(self, synced: Synced, **options: Any) -> None:
        self.outages: list[MnemeshError] = []
        self.problems: list[str] = []
        self._changed = asyncio.Event()
        self._reports: list[SyncReport] = []
        self._passes: list[Pass] = []
        sync = FolderSync(
            synced.mesh.client, synced.folder.id, synced.root, IgnoreRules.of_root(), self._report, deletes=True,
            settle_seconds=0.05,
        )  # fmt: skip
        self.watch = Watch(
            sync,
            on_pass=self._pass,
            on_outage=self._outage,
            on_problem=self._problem,
            reconnect_seconds=0.05,
            **options,
        )

    def _report(self, report: SyncReport) -> None:
        self._reports.append(report)
        self._changed.set()

    def _pass(self, result: Pass) -> None:
        self._passes.append(result)
        self._changed.set()

    def _problem(self, text: str) -> None:
        self.problems.append(text)
        self._changed.set()

    def _outage(self, error: MnemeshError) -> None:
        self.outages.append(error)
        self._changed.set()

    def start(self) -> asyncio.Event:
        """Starts the watch. Returns the event that stops it."""
        stop = asyncio.Event()
        self.running = asyncio.ensure_future(self.watch.run(stop))
        self.running.add_done_callback(lambda _: self._changed.set())
        return stop

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until something that was reported fulfils a condition. Raises what ended the watch."""
        while not condition():
            if self.running.done():
                raise AssertionError("the watch has ended") from self.running.exception()
            self._changed.clear()
            await self._changed.wait()

    async def until_reported(self, *lines: str) -> None:
        """Waits for reports."""
        await self.until(lambda: set(lines) <= {f"{report.done} {report.path}" for report in self._reports})

    async def until_compared(self) -> None:
        """Waits for the first pass."""
        await self.until(lambda: bool(self._passes))


async def test_watch_follows_changes_until_it_is_stopped(synced: Synced) -> None:
    synced.write("a.md", "1")
    watched = Watched(synced)
    stop = watched.start()
    await watched.until_compared()
    synced.write("sub/new.md", "2")
    await watched.until_reported("created a.md", "created sub/new.md")
    (synced.root / "a.md").rename(synced.root / "b.md")
    await watched.until_reported("renamed b.md")
    synced.write(".gitignore", "*.log\n")
    synced.write("x.log", "ignored")
    (synced.root / "b.md").unlink()
    await watched.until_reported("deleted b.md")
    stop.set()
    await watched.running

    assert await synced.remote() == {"sub--new.md": "2"}


async def test_watch_survives_an_outage(synced: Synced) -> None:
    watched = Watched(synced)
    stop = watched.start()
    await watched.until_compared()
    synced.mesh.proxy.inject("UploadFile", Unavailable(), times=10_000)
    synced.write("a.md", "1")
    await watched.until(lambda: bool(watched.outages))
    synced.mesh.proxy.clear()
    await watched.until_reported("created a.md")
    stop.set()
    await watched.running


async def test_watch_of_a_directory_that_is_gone_deletes_nothing_and_goes_on_when_it_is_back(synced: Synced) -> None:
    synced.root /= "sub"
    synced.write("a.md", "1")
    watched = Watched(synced)
    stop = watched.start()
    await watched.until_reported("created a.md")
    (synced.root / "a.md").unlink()
    synced.root.rmdir()
    await watched.until(lambda: any("cannot be read" in text for text in watched.problems))
    assert await synced.remote() == {"a.md": "1"}
    synced.write("a.md", "1")
    synced.write("b.md", "2")
    await watched.until_reported("created b.md")
    synced.write("c.md", "the system reports it")
    await watched.until_reported("created c.md")
    stop.set()
    await watched.running


async def test_names_that_are_not_utf8_end_no_watch_and_lose_no_change(synced: Synced) -> None:
    watched = Watched(synced)
    stop = watched.start()
    await watched.until_compared()
    for number in range(3):
        synced.write(f"before{number}.md", str(number))
        Path(os.fsdecode(os.fsencode(synced.root) + b"/caf\xe9%d.md" % number)).write_text("x")
        synced.write(f"after{number}.md", str(number))
        await watched.until_reported(f"created before{number}.md", f"created after{number}.md")
    directory = Path(os.fsdecode(os.fsencode(synced.root) + b"/d\xe9r"))
    directory.mkdir()
    (directory / "inside.md").write_text("x")
    synced.write("last.md", "x")
    await watched.until_reported("created last.md")
    stop.set()
    await watched.running


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "fs.inotify.max_user_watches"),
        (OSError(errno.EMFILE, "Too many open files"), "fs.inotify.max_user_instances"),
        (RuntimeError("error in underlying watcher"), "underlying watcher"),
    ],
)
async def test_watch_without_reports_of_the_system_compares(
    synced: Synced, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    real, calls = watch.awatch, 0

    async def awatch(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ExceptionGroup("of a task group", [error])
        async for changes in real(*arguments, **options):
            yield changes

    monkeypatch.setattr(watch, "awatch", awatch)
    watched = Watched(synced, unreported_seconds=1.0)
    stop = watched.start()
    await watched.until(lambda: any(text in problem for problem in watched.problems))
    synced.write("a.md", "1")
    await watched.until_reported("created a.md")
    await watched.until(lambda: calls == 2)
    synced.write("b.md", "2")
    await watched.until_reported("created b.md")
    stop.set()
    await watched.running


async def test_files_of_a_file_system_that_is_no_longer_mounted_stay(
    synced: Synced, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced.write("mounted/a.md", "1")
    synced.write("b.md", "2")
    mounted, real = synced.root / "mounted", Path.stat
    device = 7

    def stat(path: Path, **options: Any) -> os.stat_result:
        status = real(path, **options)
        return os.stat_result((*status[:2], device, *status[3:])) if path == mounted else status

    monkeypatch.setattr(Path, "stat", stat)
    sync = synced.sync(deletes=True)
    assert await synced.pass_(sync) == ["created b.md", "created mounted/a.md"]
    device = 8
    (mounted / "a.md").unlink()
    (synced.root / "b.md").unlink()
    assert await synced.pass_(sync) == ["deleted b.md"]
    device = 7
    assert await synced.pass_(sync) == ["deleted mounted/a.md"]


async def test_file_that_cannot_be_read_when_it_is_uploaded_costs_only_itself(
    synced: Synced, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = type(synced.mesh.client.files).upload

    async def upload(files: Any, folder_id: str, source: Path, **options: Any) -> Any:
        if source.name == "bad.md":
            raise OSError(errno.EIO, "Input/output error")
        return await real(files, folder_id, source, **options)

    monkeypatch.setattr(type(synced.mesh.client.files), "upload", upload)
    synced.write("bad.md", "1")
    synced.write("good.md", "2")
    result = await synced.sync().run()
    assert result.unreadable == {"bad.md": "Input/output error"}
    assert await synced.remote() == {"good.md": "2"}
