"""A program that kills backups and restores of a stopped mesh.

    python killed_backups.py DATA_DIR WORK_DIR STRIDE

Each runs in a forked process, which is killed before one of its steps: before each STRIDE-th, and the last ones. A step
is an operation on the file system that changes it, or a statement of SQL that writes.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from mnemesh_cli.backups.archive import BACKUPS, choose_backup, find_backups
from mnemesh_cli.backups.backup import make_backup
from mnemesh_cli.backups.places import Place, open_place
from mnemesh_cli.backups.restore import restore_backup
from mnemesh_cli.backups.stores import MeshStores, ServiceStore
from mnemesh_cli.backups.verify import verify_backup, verify_mesh
from mnemesh_cli.supervisor.config import MeshConfig
from mnemesh_kit.config import StartupError
from mnemesh_kit.sql.snapshots import connect

CHANGES: Final = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate", "sqlite3.connect"}
WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
READING: Final = ("SELECT", "PRAGMA", "BEGIN")
LAST: Final = 3


def ignore(_line: str) -> None:
    """Receives a report that no one reads."""


def observe_steps(observe: Callable[[str], None]) -> None:
    """Calls a function before each step of this process, from now on to its end."""

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event in CHANGES or (event == "open" and int(str(arguments[2])) & WRITING):
            observe(f"{event} {arguments[0]}")

    def execute(*arguments: object) -> None:
        if not str(arguments[2]).startswith(READING):
            observe(str(arguments[2]))

    sys.addaudithook(audit)
    sa.event.listen(sa.Engine, "before_cursor_execute", execute)


def in_fork(work: Callable[[], object]) -> int:
    """Does the work in another process. Returns its status."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1]


def steps_of(work: Callable[[], object], found: Path) -> list[str]:
    """Does the work, and returns its steps."""

    def record() -> None:
        names: list[str] = []
        observe_steps(names.append)
        work()
        steps = list(names)
        found.write_text(json.dumps(steps))

    assert in_fork(record) == 0
    steps: list[str] = json.loads(found.read_text())
    return steps


def killed(work: Callable[[], object], step: int) -> None:
    """Does the work in another process, which is killed before the step of this number."""
    count = 0

    def observe(_name: str) -> None:
        nonlocal count
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def begin() -> None:
        observe_steps(observe)
        work()

    assert os.WIFSIGNALED(in_fork(begin)), f"step {step} was not reached"


def chosen(count: int, stride: int) -> list[int]:
    """Returns the numbers of the steps before which a process is killed."""
    return sorted({*range(0, count, stride), *range(max(0, count - LAST), count)})


def stores_of(directory: Path) -> MeshStores:
    directory.mkdir(exist_ok=True)
    return MeshStores.of(MeshConfig(data_dir=str(directory)))


def kill_backups(source: MeshStores, work: Path, stride: int) -> None:
    """The last good backup stays good, and the next one is complete."""
    empty, kept = stores_of(work / "empty"), work / "kept"
    for store in empty.services.values():
        store.migrate()
    first = backup(empty, kept)
    target = work / "counted"
    shutil.copytree(kept, target)
    steps = steps_of(lambda: backup(source, target), work / "steps")
    for number in chosen(len(steps), stride):
        shutil.rmtree(target)
        shutil.copytree(kept, target)
        killed(lambda: backup(source, target), number)
        known = find_backups(open_place(str(target)))
        assert known[0] == first, steps[number]
        assert known[1:] == [] or number > len(steps) - LAST, f"{steps[number]}: a backup without its end"
        place, last = open_place(str(target)), backup(source, target)
        assert find_backups(place) == [*known, last], steps[number]
        for backup_id in (*known, last):
            assert verify_backup(source, place, choose_backup(place, backup_id)) == [], steps[number]
        assert {name.split("/")[1] for name in place.names(BACKUPS)} == {*known, last}, steps[number]
        assert not place.names("unfinished"), steps[number]


def backup(source: MeshStores, directory: Path) -> str:
    return make_backup(source, open_place(str(directory), create=True), ignore).id


def kill_restores(place: Place, work: Path, stride: int) -> None:
    """A part of a mesh does not start, and the restore can be repeated."""
    manifest = choose_backup(place, None)

    def restore(directory: Path) -> None:
        restore_backup(stores_of(directory), place, manifest, ignore)

    target = work / "target"
    steps = steps_of(lambda: restore(target), work / "steps")
    for number in chosen(len(steps), stride):
        shutil.rmtree(target)
        killed(lambda: restore(target), number)
        stores = stores_of(target)
        # A service with a part of the mesh refuses to start. The repetition refuses one that has other rows.
        assert refusals(stores) or all(is_empty(store) for store in stores.services.values()), steps[number]
        restore(target)
        assert refusals(stores) == [], steps[number]
        assert verify_mesh(stores, manifest) == [], steps[number]


def is_empty(store: ServiceStore) -> bool:
    """Returns whether a service has no rows."""
    with connect(store.url) as connection:
        return not any(connection.execute(sa.select(table).limit(1)).first() for table in store.tables)


def refusals(stores: MeshStores) -> list[str]:
    """Starts the services. Returns the errors of those that refuse."""
    refused = []
    for store in stores.services.values():
        try:
            store.migrate()
        except StartupError as error:
            refused.append(str(error))
    assert all("Run `mnemesh restore` again" in text for text in refused), refused
    return refused


if __name__ == "__main__":
    data, work_directory, every = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    origin = stores_of(data)
    kill_backups(origin, work_directory, every)
    complete = open_place(str(work_directory / "complete"), create=True)
    make_backup(origin, complete, ignore)
    kill_restores(complete, work_directory, every)
