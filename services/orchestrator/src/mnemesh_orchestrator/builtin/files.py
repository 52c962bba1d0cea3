"""The tools of files. Their results are texts of the contract, which the model reads."""

import html
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from mnemesh_kit.errors import NotFound
from mnemesh_types.messages import ImagePart

from mnemesh_orchestrator.builtin.call import BuiltinCall, OptionalCalls, Refused, WithImages
from mnemesh_orchestrator.clients.files import FilesClient
from mnemesh_orchestrator.model.files import (
    FileHit,
    FileMatch,
    FileMatches,
    FileView,
    OpenedFile,
    Opening,
    WindowRequest,
    refused_image,
    returned_images,
)

T = TypeVar("T")

WHAT: Final = "Your files"
OPEN_FILES: Final = "open_files"
_RULE: Final = "=" * 80
_DEFAULT_HITS: Final = 5
_SHOWN_LINES: Final = 20
_COLLECTED: Final = 1_000
_SKIPPED: Final = {
    "file_too_large": "too large",
    "total_too_large": "beyond the total size that one search reads",
    "not_ready": "not processed yet, or their processing failed",
    "timeout": "not reached within the time limit",
}


@dataclass(frozen=True, eq=False)
class FileTools:
    """Runs the tools of files. If the files service stays unavailable, the model is told so, and the turn goes on."""

    files: FilesClient
    optional: OptionalCalls

    async def open_files(self, call: BuiltinCall, arguments: Mapping[str, Any]) -> str | WithImages:
        """Runs open_files. The result shows the images among the files."""
        windows = [_window(each) for each in arguments["file_requests"]]
        if not windows:
            raise Refused("No file requests provided")
        others = arguments.get("close_all_others", False)
        opening = await self._open(call, windows, close_others=others)
        shown = [_opened(each) for each in opening.opened]
        text = f"* Opened {shown[0]}" if len(shown) == 1 else f"* Opened {len(shown)} files: {', '.join(shown)}"
        if opening.closed_others:
            names = ", ".join(opening.closed_others)
            text += f"\nNote: Closed {len(opening.closed_others)} file(s) due to close_all_others=True: {names}"
        if opening.evicted:
            names = ", ".join(opening.evicted)
            text += f"\nNote: Closed {len(opening.evicted)} least recently used file(s) due to open file limit: {names}"
        if call.shows_opened_files:
            text += "".join(f"\n\n{each.name}\n{each.value}" for each in opening.opened)
        images, notes = returned_images(tuple(_image(each) for each in opening.opened if _is_image(each)))
        return WithImages("\n".join((text, *notes)), images) if images or notes else text

    async def grep_files(self, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
        """Runs grep_files."""
        pattern, include = arguments["pattern"].strip(), (arguments.get("include") or "").strip() or None
        if not pattern:
            raise Refused("Empty search pattern provided")
        offset = arguments.get("offset", 0)
        found = await self._call(
            lambda: self.files.grep(
                call.agent_id, pattern, include, context_lines=arguments.get("context_lines", 1), offset=offset
            )
        )
        if not found.total:
            return _without_matches(pattern, include, found)
        return _report(pattern, include, offset, found)

    async def semantic_search_files(self, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
        """Runs semantic_search_files."""
        query = arguments["query"].strip()
        if not query:
            raise Refused("Empty search query provided")
        limit = arguments.get("limit", _DEFAULT_HITS)
        found = await self._call(lambda: self.files.search(call.agent_id, query, limit))
        notes = []
        if found.skipped:
            notes.append(f"Note: {found.skipped} files cannot be searched yet")
        if found.degraded:
            notes.append("Note: only words were searched, because the embedding service does not answer")
        if not found.hits:
            return "\n".join((f"No semantic matches found for query: '{query}'", *notes))
        files = len({hit.file_name for hit in found.hits})
        matches = "match" if len(found.hits) == 1 else "matches"
        header = f"Found {len(found.hits)} semantic {matches} in {files} file{'s' * (files != 1)} for query: '{query}'"
        return "\n".join((header, "=" * len(header), *notes, *map(_hit, found.hits)))

    async def _open(self, call: BuiltinCall, windows: Sequence[WindowRequest], *, close_others: bool) -> Opening:
        request_id = call.effect(0)
        try:
            return await self._call(
                lambda: self.files.open(request_id, call.agent_id, windows, close_others=close_others)
            )
        except NotFound:
            # The model may repeat a name as the system message shows it, with references to characters.
            plain = [replace(window, name=html.unescape(window.name)) for window in windows]
            if plain == windows:
                raise
            return await self._call(
                lambda: self.files.open(request_id, call.agent_id, plain, close_others=close_others)
            )

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        result, note = await self.optional.call(call, WHAT)
        if result is None:
            raise Refused(note)
        return result


def _window(request: Mapping[str, Any]) -> WindowRequest:
    name, offset, length = request["file_name"], request.get("offset"), request.get("length")
    if offset is not None and offset < 0:
        raise Refused(f"Offset for file {name} must be >= 0 (0-indexed), got {offset}")
    if length is not None and length < 1:
        raise Refused(f"Length for file {name} must be >= 1, got {length}")
    return WindowRequest(name, offset, length)


def _opened(file: OpenedFile) -> str:
    shown = "" if file.view == FileView(None, None) else f" ({_lines(file.view)})"
    previous = ""
    if file.previous is not None:
        whole = file.previous == FileView(None, None)
        previous = " (previously full file)" if whole else f" (previously {_lines(file.previous)})"
    return f"{file.name}{shown}{previous}"


def _is_image(file: OpenedFile) -> bool:
    return file.media_type.startswith("image/") and file.media_type != "image/svg+xml"


def _image(file: OpenedFile) -> ImagePart | str:
    problem = refused_image(file.media_type, file.size_bytes)
    return ImagePart(file_id=file.file_id) if problem is None else f"{file.name}: {problem}"


def _lines(view: FileView) -> str:
    return f"lines {view.start_line or 1}-{'end' if view.end_line is None else view.end_line}"


def _without_matches(pattern: str, include: str | None, found: FileMatches) -> str:
    if not found.files_searched and not found.skipped:
        if include is not None:
            return f"No files match the filename pattern '{include}'"
        return "No files are currently attached to search"
    text = f"No matches found for pattern: '{pattern}'"
    if include is not None:
        text += f" in files matching '{include}'"
    if found.skipped:
        text += f" (searched {found.files_searched} files, skipped {sum(found.skipped.values())})"
    return "\n".join((text, *_notes(found)))


def _report(pattern: str, include: str | None, offset: int, found: FileMatches) -> str:
    total = f"{_COLLECTED}+" if found.capped else str(found.total)
    first, last = offset + 1, offset + len(found.matches)
    shown = f"showing matches {first}-{last} of {total}" if found.matches else f"none after the first {found.total}"
    lines = [f"Found {total} total matches across {len(found.files)} files ({shown})", *_notes(found), _RULE]
    lines += ["\nFiles with matches:", *(f"  - {name}: {count} matches" for name, count in found.files), ""]
    lines += [*map(_match, found.matches), ""]
    if found.next_offset is not None:
        narrowed = f', include="{include}"' if include is not None else ""
        lines.append(
            f'To see more matches, call: grep_files(pattern="{pattern}"{narrowed}, offset={found.next_offset})'
        )
        if found.capped:
            lines.append(
                f"Note: Only the first {_COLLECTED} matches were collected. "
                "There may be more matches beyond this limit."
            )
    elif found.capped:
        lines.append("Showing last page of collected matches. There may be more matches beyond the collection limit.")
    else:
        lines.append("No more matches to show.")
    return "\n".join(lines)


def _notes(found: FileMatches) -> Sequence[str]:
    return [f"Note: Skipped {count} files: {_SKIPPED.get(cause, cause)}" for cause, count in found.skipped.items()]


def _match(match: FileMatch) -> str:
    page = f" (page {match.page})" if match.page is not None else ""
    first = match.line - len(match.before)
    numbered = enumerate((*match.before, match.text, *match.after), first)
    shown = (f"{'>' if number == match.line else ' '} {number}: {line}" for number, line in numbered)
    return "\n".join((f"\n=== {match.file_name}:{match.line} ==={page}", *shown))


def _hit(hit: FileHit) -> str:
    place = hit.file_name if hit.start_line is None else f"{hit.file_name}:{hit.start_line}-{hit.end_line}"
    page = ""
    if hit.start_page is not None:
        several = hit.end_page is not None and hit.end_page != hit.start_page
        page = f" (pages {hit.start_page}-{hit.end_page})" if several else f" (page {hit.start_page})"
    lines = hit.text.strip().splitlines()
    shown = [f"  {line}" for line in lines[:_SHOWN_LINES]]
    if len(lines) > _SHOWN_LINES:
        shown.append(f"  ... [truncated {len(lines) - _SHOWN_LINES} more lines]")
    return "\n".join((f"\n=== {place} ==={page}", *shown))
