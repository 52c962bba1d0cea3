"""`mnemesh files upload` and `mnemesh files import`."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from mnemesh.files.v1 import files_pb2, files_service_pb2
from mnemesh_cli.connection import Connection
from mnemesh_cli.directories.scan import IgnoreRules, scan
from mnemesh_cli.directories.sync import FolderFiles, for_each
from mnemesh_cli.display.error_text import error_text
from mnemesh_cli.display.progress import TransferBars, processing_bar, transfer_bars
from mnemesh_cli.display.records import json_line
from mnemesh_cli.display.terminal import notice, print_error
from mnemesh_cli.display.views import FolderNames
from mnemesh_client.mnemesh import PATIENCE_SECONDS, Mnemesh
from mnemesh_client.patience import is_broken_connection, patiently
from mnemesh_client.uploads import Source, folder_name_of, sha256_of
from mnemesh_kit.errors import MnemeshError, NotFound

_FEW: Final = 20
"""Up to so many names, only these are looked up, and not the whole folder read."""
_STDIN: Final = "-"


class OnDuplicate(StrEnum):
    """The handling of a file if the folder has a file of that name with other content."""

    ERROR = "error"
    SKIP = "skip"
    REPLACE = "replace"
    SUFFIX = "suffix"


FolderOption = Annotated[
    str, typer.Option("--folder", "-f", help="Folder, by id or name. A new name creates it.", show_default=False)
]
DuplicateOption = Annotated[
    OnDuplicate, typer.Option(help="What to do if the folder has a file of that name with other content.")
]
WaitOption = Annotated[bool, typer.Option("--wait", "-w", help="Wait until the files are processed.")]
IgnoreOption = Annotated[
    list[str] | None,
    typer.Option(metavar="RULE", help="Leave files out, in the syntax of .gitignore. Can be repeated."),
]
HiddenOption = Annotated[bool, typer.Option("--hidden", help='Include files whose name begins with ".".')]
ParallelOption = Annotated[int, typer.Option(min=1, max=32, help="Number of files to send at a time.")]


@dataclass(frozen=True, slots=True)
class Item:
    label: str
    """Its path, as the user knows it."""
    source: Source
    name: str
    size: int = 0
    path: str | None = None
    """Its relative path in a directory."""


@dataclass(slots=True)
class Outcome:
    uploaded: list[files_pb2.File] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return bool(self.counts.get("failed"))

    def count(self, done: str) -> None:
        self.counts[done] = self.counts.get(done, 0) + 1


def upload(
    context: typer.Context,
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files and directories; - is stdin.")],
    folder: FolderOption,
    on_duplicate: DuplicateOption = OnDuplicate.ERROR,
    name: Annotated[str | None, typer.Option(help="Name of a single file.", show_default="its own name")] = None,
    wait: WaitOption = False,
    ignore: IgnoreOption = None,
    hidden: HiddenOption = False,
    parallel: ParallelOption = 4,
) -> None:
    """Upload files to a folder, directories with everything in them.

    Files that the folder has with the same content are not uploaded again. A file of a subdirectory is named by its
    relative path with -- in place of /. Left out are hidden files, temporary files of editors, and what the files
    .gitignore and .mnemeshignore name; a file named on the command line never is. Exits with 1 if a file failed.
    """
    rules = IgnoreRules.of_root(ignore or (), hidden=hidden)
    items, problems = _collect(paths, name, rules)
    for problem in problems:
        print_error(problem)
    request = _Request(folder, items, on_duplicate, wait=wait, parallel=parallel, as_json=context.obj.as_json)
    failed = asyncio.run(_upload(context.obj, request)) or bool(problems)
    raise typer.Exit(int(failed))


def import_(
    context: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="An address of http or https that the server reaches.")],
    folder: FolderOption,
    on_duplicate: DuplicateOption = OnDuplicate.ERROR,
    name: Annotated[str | None, typer.Option(help="Name of the file.", show_default="the last part of the URL")] = None,
    wait: WaitOption = False,
) -> None:
    """Let the server download a file to a folder."""
    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter("A URL begins with http:// or https://.", param_hint="URL")
    request = _Request(
        folder, [Item(url, url, name or "")], on_duplicate, wait=wait, parallel=1, as_json=context.obj.as_json
    )
    raise typer.Exit(int(asyncio.run(_upload(context.obj, request))))


async def find_or_create_folder(mnemesh: Mnemesh, key: str) -> files_pb2.Folder:
    """Returns the folder with an id or name. A folder of a new name is created, with a notice."""
    try:
        return await mnemesh.folders.find(key)
    except NotFound:
        if key.startswith("source-"):
            raise
    folder = await mnemesh.folders.create(key)
    notice(f"created the folder {folder.name}")
    return folder


@dataclass(frozen=True, slots=True)
class _Request:
    folder: str
    items: Sequence[Item]
    on_duplicate: OnDuplicate
    wait: bool
    parallel: int
    as_json: bool


def _collect(paths: Sequence[str], name: str | None, rules: IgnoreRules) -> tuple[list[Item], list[str]]:
    """Returns the files to upload, and the problems of others."""
    items, problems = [], []
    for text in paths:
        path = Path(text)
        if text == _STDIN:
            if name is None:
                raise typer.BadParameter("Name the file that is read from stdin.", param_hint="--name")
            items.append(Item(_STDIN, sys.stdin.buffer, name))
        elif path.is_dir():
            found = scan(path, rules)
            problems += [f"{path / each}: {problem}" for each, problem in found.unreadable.items()]
            items += [
                Item(str(path / each), path / each, folder_name_of(each), state.size, each)
                for each, state in sorted(found.files.items())
            ]
        elif path.is_file():
            items.append(Item(text, path, name or path.name, path.stat().st_size))
        else:
            problems.append(f"{text} is not a file or a directory")
    if name is not None and (len(items) != 1 or items[0].path is not None):
        raise typer.BadParameter("Only a single file can be given a name.", param_hint="--name")
    return items, problems


async def _upload(connection: Connection, request: _Request) -> bool:
    """Uploads files and, if requested, waits for them. Returns whether any failed."""
    outcome = Outcome()
    if not request.items:
        notice("there is nothing to upload")
        return False
    async with connection.open() as mnemesh:
        folder, known = await patiently(lambda: _destination(mnemesh, request), PATIENCE_SECONDS, _waits)
        with transfer_bars("uploading", sum(item.size for item in request.items)) as bars:
            uploads = _Uploads(mnemesh, folder, known, request, outcome, bars)
            await for_each(request.items, request.parallel, uploads.one)
        if len(request.items) > 1:
            counted = ", ".join(f"{count} {done}" for done, count in outcome.counts.items())
            notice(f"{len(request.items)} files: {counted}")
        if request.wait:
            await _wait(mnemesh, outcome)
    return outcome.failed


async def _destination(mnemesh: Mnemesh, request: _Request) -> tuple[files_pb2.Folder, FolderFiles]:
    """Returns the folder of an upload, and those of its files that the upload may have."""
    folder = await find_or_create_folder(mnemesh, request.folder)
    return folder, FolderFiles([file async for file in _list_known(mnemesh, folder.id, request.items)])


def _waits() -> None:
    notice(f"the files service does not answer; waiting for up to {PATIENCE_SECONDS:.0f} seconds")


async def _list_known(mnemesh: Mnemesh, folder_id: str, items: Sequence[Item]) -> AsyncIterator[files_pb2.File]:
    """Yields the files of a folder that may be those of the upload."""
    if len(items) > _FEW or any(item.path is not None for item in items):
        async for file in mnemesh.files.list(folder_id=folder_id):
            yield file
        return
    for name in {item.name for item in items if item.name}:
        async for file in mnemesh.files.list(folder_id=folder_id, name=name):
            yield file


@dataclass(frozen=True, slots=True)
class _Uploads:
    mnemesh: Mnemesh
    folder: files_pb2.Folder
    known: FolderFiles
    request: _Request
    outcome: Outcome
    bars: TransferBars

    async def one(self, item: Item) -> None:
        """Uploads one file and prints what happened. A refusal does not end the others."""
        try:
            file, done = await self._send(item)
        except MnemeshError as error:
            if is_broken_connection(error):
                raise
            self.outcome.count("failed")
            print_error(f"{item.label}: {error_text(error)}")
            return
        finally:
            self.bars.end(item.label, item.size)
        self.outcome.count(done)
        if done != "unchanged":
            self.outcome.uploaded.append(file)
        name = f"{self.folder.name}/{file.name}"
        self.bars.print(json_line(file, outcome=done) if self.request.as_json else f"{done} {name}")

    async def _send(self, item: Item) -> tuple[files_pb2.File, str]:
        known = self.known.of(item.path) if item.path is not None else self.known.named(item.name)
        duplicate = self.request.on_duplicate
        if known is not None and duplicate is not OnDuplicate.SUFFIX and await _has_content(item.source, known):
            return known, "unchanged"
        result = await self.mnemesh.files.upload(
            self.folder.id,
            item.source,
            name=(item.name if known is None else known.name) or None,
            on_duplicate=duplicate.value,
            path=item.path,
            on_progress=self.bars.of(item.label),
        )
        outcome = files_service_pb2.UploadOutcome.Name(result.outcome).removeprefix("UPLOAD_OUTCOME_")
        return result.file, outcome.lower()


async def _has_content(source: Source, file: files_pb2.File) -> bool:
    try:
        return isinstance(source, Path) and await sha256_of(source) == file.sha256
    except OSError:
        return False  # The upload reports it.


async def _wait(mnemesh: Mnemesh, outcome: Outcome) -> None:
    """Waits until the uploaded files are processed, and prints the failures."""
    ids, names = [file.id for file in outcome.uploaded], FolderNames(mnemesh)
    with processing_bar(len(ids)) as bar:
        async for file in mnemesh.files.wait_all(ids, on_progress=bar.show):
            if file.status == files_pb2.FILE_STATUS_ERROR:
                outcome.count("failed")
                print_error(f"{await names.of(file)} cannot be processed: {file.error_message}")
            for warning in file.warnings:
                notice(f"{await names.of(file)}: {warning}")
