"""`mnemesh files`: upload, import, search, grep, list, show, text, download, delete, retry."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from mnemesh.files.v1 import agent_files_service_pb2, files_pb2, files_service_pb2
from mnemesh_cli.commands.resources import with_client
from mnemesh_cli.connection import Connection, choose_agent
from mnemesh_cli.directories.sync import FolderFiles, IgnoreRules, for_each, scan
from mnemesh_cli.display.error_text import error_text
from mnemesh_cli.display.progress import TransferBars, processing_bar, transfer_bars
from mnemesh_cli.display.records import json_line, print_done, print_fields, print_json, print_list
from mnemesh_cli.display.terminal import is_json, notice, output, print_error
from mnemesh_cli.display.views import FolderNames, file_columns, file_fields, status_text
from mnemesh_cli.options import FileArgument, YesOption
from mnemesh_client.mnemesh import PATIENCE_SECONDS, Mnemesh
from mnemesh_client.patience import is_broken_connection, patiently
from mnemesh_client.uploads import Source, folder_name_of, sha256_of
from mnemesh_kit.errors import InvalidArgument, MnemeshError, NotFound
from rich.text import Text

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


app = typer.Typer(no_args_is_help=True, help="Upload, list, search, show, download and delete files.")


@app.command("upload")
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
    request = _Request(folder, items, on_duplicate, wait=wait, parallel=parallel)
    failed = asyncio.run(_upload(context.obj, request)) or bool(problems)
    raise typer.Exit(int(failed))


@app.command("import")
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
    request = _Request(folder, [Item(url, url, name or "")], on_duplicate, wait=wait, parallel=1)
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
        self.bars.print(json_line(file, outcome=done) if is_json.get() else f"{done} {name}")

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


AgentOption = Annotated[
    str | None,
    typer.Option("--agent", "-a", help="Id or name of the agent that holds the files.", show_default="the first agent"),
]


def _print_match(match: agent_files_service_pb2.GrepMatch) -> None:
    console = output()
    first = match.line - len(match.lines_before)
    for number, line in enumerate(match.lines_before, first):
        console.print(Text(f"{match.file_name}-{number}- {line}", style="dim"))
    console.print(Text(f"{match.file_name}:{match.line}: ", style="cyan"), Text(match.text), sep="")
    for number, line in enumerate(match.lines_after, match.line + 1):
        console.print(Text(f"{match.file_name}-{number}- {line}", style="dim"))


def _print_skipped(skipped: Sequence[agent_files_service_pb2.SkippedFile]) -> None:
    for file in skipped:
        cause = agent_files_service_pb2.SkipCause.Name(file.cause).removeprefix("SKIP_CAUSE_").lower()
        notice(f"not searched: {file.file_name} ({cause.replace('_', ' ')})")


def _place(name: str, start_line: int, end_line: int, page: int) -> str:
    lines = f":{start_line}-{end_line}" if start_line else ""
    return f"{name}{lines}" + (f" (page {page})" if page else "")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines())


class Status(StrEnum):
    """The statuses of files."""

    PENDING = "pending"
    FETCHING = "fetching"
    PARSING = "parsing"
    EMBEDDING = "embedding"
    COMPLETED = "completed"
    ERROR = "error"


_STDOUT: Final = Path("-")


@app.command("list")
@with_client
async def list_files(
    mnemesh: Mnemesh,
    folder: Annotated[str | None, typer.Option("--folder", "-f", help="Only files of this folder.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="Only files of this agent, by id or name.")] = None,
    name: Annotated[str | None, typer.Option(help="Only files whose name contains this text.")] = None,
    status: Annotated[list[Status] | None, typer.Option(help="Only files with this status. Can be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of files to list.")] = 100,
) -> None:
    """List files, newest first."""
    folder_id = None if folder is None else (await mnemesh.folders.find(folder)).id
    agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
    filters: dict[str, Any] = {"name_search": name, "statuses": status or (), "folder_id": folder_id}
    folders = FolderNames(mnemesh)
    files = [file async for file in mnemesh.files.list(**filters, agent_id=agent_id, order="desc", limit=limit)]
    names = {} if is_json.get() else {file.id: await folders.of(file) for file in files}
    empty = "There are no such files. Upload some with `mnemesh files upload`."
    await print_list(files, file_columns(names), empty=empty, limit=limit)


@app.command("show")
@with_client
async def show_file(mnemesh: Mnemesh, key: FileArgument) -> None:
    """Show a file: its status, size, hash and times."""
    file = await mnemesh.files.find(key)
    if is_json.get():
        print_json(file)
    else:
        print_fields(file_fields(await FolderNames(mnemesh).of(file), file))


@app.command("text")
@with_client
async def show_text(
    mnemesh: Mnemesh,
    key: FileArgument,
    lines: Annotated[
        str | None, typer.Option(help="Only these lines, as 12, 12-20 or 12-.", show_default="all")
    ] = None,
    numbers: Annotated[bool, typer.Option("--numbers", "-n", help="Begin each line with its number.")] = False,
) -> None:
    """Print the text of a file, as agents see it."""
    start, length = _range(lines)
    file = await mnemesh.files.find(key)
    text = await mnemesh.files.text(file.id, offset=start - 1, length=length)
    if is_json.get():
        print_json({"file_id": file.id, "start_line": start, "text": text})
        return
    if numbers:
        text = "\n".join(f"{number}: {line}" for number, line in enumerate(text.split("\n"), start))
    output().print(text, markup=False, emoji=False, soft_wrap=True)


@app.command("download")
@with_client
async def download_file(
    mnemesh: Mnemesh,
    key: FileArgument,
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="File or directory; - is stdout.", show_default="its name")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Download a file as it was uploaded, after verifying its hash."""
    if path == _STDOUT and is_json.get():
        raise typer.BadParameter("The contents on stdout are not JSON. Name a path.", param_hint="PATH")
    file = await mnemesh.files.find(key)
    if path == _STDOUT:
        sys.stdout.buffer.write(await mnemesh.files.read(file.id))
        sys.stdout.buffer.flush()
        return
    target = _target(path, file.name)
    with transfer_bars("downloading", file.size_bytes) as bars:
        await mnemesh.files.download(file.id, target, overwrite=force, on_progress=bars.of(file.name))
    print_done(str(target), {"file_id": file.id, "path": str(target)})


@app.command("retry")
@with_client
async def retry_file(mnemesh: Mnemesh, key: FileArgument) -> None:
    """Process a file again, for example after an error."""
    file = await mnemesh.files.retry((await mnemesh.files.find(key)).id)
    print_done(f"{await FolderNames(mnemesh).of(file)}: {status_text(file)}", file)


@app.command("delete")
@with_client
async def delete_files(
    mnemesh: Mnemesh,
    keys: Annotated[list[str], typer.Argument(metavar="FILE...", help="Ids or names, as folder/name.")],
    yes: YesOption = False,
) -> None:
    """Delete files. Their agents no longer have them."""
    files, names = [await mnemesh.files.find(key) for key in keys], FolderNames(mnemesh)
    if not yes:
        listed = ", ".join([await names.of(file) for file in files[:5]]) + ("…" if len(files) > 5 else "")
        typer.confirm(f"Delete {listed}?", abort=True, err=True)
    for file in files:
        await mnemesh.files.delete(file.id)
        print_done(f"deleted {await names.of(file)}", {"deleted": file.id})


def _target(path: Path | None, name: str) -> Path:
    """Returns the path to which a file is downloaded. A name of the server is never a path."""
    if path is not None and not path.is_dir():
        return path
    if Path(name).name != name:
        raise InvalidArgument(f"{name!r} is not a name of a file on this system. Name a path.", field="path")
    return (path or Path()) / name


def _range(text: str | None) -> tuple[int, int | None]:
    """Returns the first line and the number of lines of a range such as "12-20"."""
    if text is None:
        return 1, None
    start, dash, end = text.partition("-")
    first, last = start or "1", (end or None) if dash else start
    if not first.isdecimal() or (last is not None and not last.isdecimal()):
        raise typer.BadParameter("Lines are 12, 12-20 or 12-.", param_hint="--lines")
    if int(first) < 1 or (last is not None and int(last) < int(first)):
        raise typer.BadParameter("The first line is 1, and the last one is not before it.", param_hint="--lines")
    return int(first), None if last is None else int(last) - int(first) + 1


@app.command("search")
@with_client
async def search(
    mnemesh: Mnemesh,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words or a question.")],
    agent: AgentOption = None,
    limit: Annotated[int, typer.Option(min=1, max=50, help="Maximum number of results.")] = 5,
) -> None:
    """Search the files of an agent by words and meaning."""
    response = await (await choose_agent(mnemesh, agent)).files.search(query, limit=limit)
    for hit in response.hits:
        if is_json.get():
            print_json(hit)
        else:
            place = _place(hit.file_name, hit.start_line, hit.end_line, hit.start_page)
            output().print(Text(place, style="cyan"))
            output().print(Text(_indented(hit.text)))
    _print_skipped(response.skipped)
    if response.degraded:
        notice("the embedder does not answer; only words were compared")
    if not response.hits:
        notice("Nothing matches.")


@app.command("grep")
@with_client
async def grep(
    mnemesh: Mnemesh,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A regular expression; case is ignored.")],
    agent: AgentOption = None,
    include: Annotated[str | None, typer.Option(help='Only files whose name matches, such as "*.py".')] = None,
    context_lines: Annotated[int, typer.Option("--context", "-C", min=0, max=20, help="Lines around each match.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of matches.")] = 100,
) -> int:
    """Find lines in the files of an agent. Exits with 1 if there are none."""
    shown, offset = 0, 0
    files = (await choose_agent(mnemesh, agent)).files
    while True:
        page = await files.grep(
            pattern, include=include, context_lines=context_lines, offset=offset, limit=min(100, limit - shown)
        )
        for match in page.matches:
            (print_json if is_json.get() else _print_match)(match)
        shown += len(page.matches)
        if not page.HasField("next_offset") or shown >= limit:
            break
        offset = page.next_offset
    _print_skipped(page.skipped)
    if page.timed_out:
        notice("the time was over before all files were searched")
    if page.total_matches > shown or page.capped:
        notice(f"{shown} of {page.total_matches}{' or more' if page.capped else ''} matches; see --limit")
    return 0 if shown else 1
