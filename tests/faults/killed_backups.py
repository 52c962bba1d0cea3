"""A program that kills backups and restores of a stopped mesh: `python killed_backups.py DATA_DIR WORK_DIR STRIDE`.

Each runs in a forked process, which is killed at one of the failpoints that it reaches: at each STRIDE-th, and at the
last ones.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from mnemesh_cli.backups.archive import BACKUPS, choose_backup, find_backups
from mnemesh_cli.backups.backup import make_backup
from mnemesh_cli.backups.places import Place, open_place
from mnemesh_cli.backups.restore import restore_backup
from mnemesh_cli.backups.stores import MeshStores
from mnemesh_cli.backups.verify import verify_backup, verify_mesh
from mnemesh_cli.supervisor.config import MeshConfig
from mnemesh_kit.config import StartupError
from mnemesh_kit.failpoints import observed_by


def ignore(_line: str) -> None:
    """Receives a report that no one reads."""


def reached(work: Callable[[], object]) -> list[str]:
    """Does the work, and returns the failpoints that it reaches."""
    names: list[str] = []
    with observed_by(lambda name: names.append(name) if name.startswith(("backup.", "restore.", "snap")) else None):
        work()
    return names


def killed(work: Callable[[], object], failpoint: int) -> None:
    """Does the work in another process, which is killed at the failpoint of this number."""
    count = 0

    def observe(name: str) -> None:
        nonlocal count
        if name.startswith(("backup.", "restore.", "snap")):
            if count == failpoint:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    child = os.fork()
    if child == 0:
        with observed_by(observe):
            work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"failpoint {failpoint} was not reached"


def chosen(count: int, stride: int) -> list[int]:
    """Returns the numbers of the failpoints at which a process is killed."""
    last = 2 if stride > 1 else 1
    return sorted({*range(0, count, stride), *range(max(0, count - last), count)})


def stores_of(directory: Path) -> MeshStores:
    return MeshStores.of(MeshConfig(data_dir=str(directory)))


def kill_backups(source: MeshStores, work: Path, stride: int) -> Place:
    """The last good backup stays good, and the next one is complete."""
    points = reached(lambda: make_backup(source, open_place(str(work / "counted"), create=True), ignore))
    assert points[-2:] == ["backup.before_manifest:backup", "backup.after_manifest:backup"]
    place = open_place(str(work / "kept"), create=True)
    first = make_backup(source, place, ignore)
    contents = [number for number, name in enumerate(points) if name.startswith("backup.before_content")]
    for number in chosen(len(points) - len(contents), stride):  # the place has the contents
        before = find_backups(place)
        killed(lambda: make_backup(source, place, ignore), number)
        known = find_backups(place)
        assert known[: len(before)] == before
        if number < len(points) - len(contents) - 1:
            assert known == before, f"{points[number]}: a backup without its end"
        for backup_id in (first.id, known[-1]):
            assert verify_backup(source, place, choose_backup(place, backup_id)) == [], points[number]
    for number in contents:
        other = open_place(str(work / f"contents-{number}"), create=True)
        killed(lambda place=other: make_backup(source, place, ignore), number)  # type: ignore[misc]
        assert find_backups(other) == []
        assert verify_backup(source, other, make_backup(source, other, ignore)) == []
    last = make_backup(source, place, ignore)
    complete = {f"{BACKUPS}{backup_id}" for backup_id in find_backups(place)}
    assert {name.rpartition("/")[0] for name in place.names(BACKUPS)} == complete
    assert not place.names("unfinished")
    assert find_backups(place)[-1] == last.id
    return place


def kill_restores(place: Place, work: Path, stride: int) -> None:
    """A part of a mesh does not start, and the restore can be repeated."""
    manifest = choose_backup(place, None)
    (work / "whole").mkdir()
    points = reached(lambda: restore_backup(stores_of(work / "whole"), place, manifest, ignore))
    for number in chosen(len(points), stride):
        target = work / f"target-{number}"
        target.mkdir()
        killed(lambda directory=target: restore_backup(stores_of(directory), place, manifest, ignore), number)  # type: ignore[misc]
        assert refuses(stores_of(target)), f"{points[number]}: a part of a mesh starts"
        restore_backup(stores_of(target), place, manifest, ignore)
        assert not refuses(stores_of(target))
        assert verify_mesh(stores_of(target), manifest) == [], points[number]


def refuses(stores: MeshStores) -> bool:
    """Returns whether a service of the mesh refuses to start."""
    try:
        for store in stores.services.values():
            store.migrate()
    except StartupError as error:
        return "Run `mnemesh restore` again" in str(error)
    return False


if __name__ == "__main__":
    data, work_directory, every = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    kill_restores(kill_backups(stores_of(data), work_directory, every), work_directory, every)
