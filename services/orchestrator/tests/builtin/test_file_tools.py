"""The tools of files: exact texts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from mnemesh_kit.errors import NotFound, Unavailable
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.builtin.call import BuiltinCall, Refused
from mnemesh_orchestrator.builtin.files import FileTools
from mnemesh_orchestrator.loop.services import OptionalServices, RetryPolicy
from mnemesh_orchestrator.model.files import (
    FileHit,
    FileHits,
    FileMatch,
    FileMatches,
    FileView,
    OpenedFile,
    Opening,
    WindowRequest,
)

from ..support.files import Files

Call = Callable[..., BuiltinCall]


class Scripted(Files):
    """A files service that returns what a test says."""

    result: Any = None

    async def open(self, *_: Any, **__: Any) -> Opening:
        return self._answer()

    async def grep(self, *_: Any, **__: Any) -> FileMatches:
        return self._answer()

    async def search(self, *_: Any, **__: Any) -> FileHits:
        return self._answer()

    def _answer(self) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.fixture
def files() -> Scripted:
    return Scripted()


@pytest.fixture
def own(files: Scripted) -> FileTools:
    return FileTools(files, OptionalServices(RetryPolicy(FrozenClock()), 0))


Lines = tuple[int | None, int | None]


def opened(name: str, view: Lines, previous: Lines | None) -> OpenedFile:
    before = None if previous is None else FileView(*previous)
    return OpenedFile("file-1", name, FileView(*view), before, f"text of {name}")


async def test_open_files_names_windows_and_closed_files(files: Scripted, own: FileTools, call: Call) -> None:
    request = call("open_files")

    async def text(*requests: OpenedFile, **closed: tuple[str, ...]) -> str:
        files.result = Opening(requests, **closed)
        wanted = {"file_requests": [{"file_name": each.name} for each in requests]}
        return await own.open_files(request, wanted)

    assert await text(opened("d/a.txt", (None, None), None)) == "* Opened d/a.txt"
    assert await text(opened("d/a.txt", (1, 10), (None, None))) == (
        "* Opened d/a.txt (lines 1-10) (previously full file)"
    )
    assert await text(opened("d/a.txt", (5, None), (1, 3))) == "* Opened d/a.txt (lines 5-end) (previously lines 1-3)"
    assert await text(
        opened("d/a.txt", (5, 9), (2, None)), opened("d/b.txt", (None, None), None), evicted=("d/c.txt", "d/e.txt")
    ) == (
        "* Opened 2 files: d/a.txt (lines 5-9) (previously lines 2-end), d/b.txt\n"
        "Note: Closed 2 least recently used file(s) due to open file limit: d/c.txt, d/e.txt"
    )
    assert await text(opened("d/a.txt", (None, None), None), closed_others=("d/x",)) == (
        "* Opened d/a.txt\nNote: Closed 1 file(s) due to close_all_others=True: d/x"
    )


async def test_a_name_is_accepted_as_the_system_message_shows_it(
    monkeypatch: pytest.MonkeyPatch, files: Scripted, own: FileTools, call: Call
) -> None:
    name, asked = 'd/"a" <b> & c.txt', list[str]()

    async def open_named(request_id: str, agent_id: str, windows: Sequence[WindowRequest], **_: Any) -> Opening:
        asked.extend(window.name for window in windows)
        if windows[0].name != name:
            raise NotFound("The agent has no such file.")
        return Opening((opened(name, (None, None), None),))

    monkeypatch.setattr(files, "open", open_named)
    shown = "d/&quot;a&quot; &lt;b&gt; & c.txt"
    assert await own.open_files(call("open_files"), {"file_requests": [{"file_name": shown}]}) == f"* Opened {name}"
    assert asked == [shown, name]
    with pytest.raises(NotFound):
        await own.open_files(call("open_files"), {"file_requests": [{"file_name": "d/other.txt"}]})


async def test_the_text_is_returned_if_the_prompt_does_not_change(files: Scripted, own: FileTools, call: Call) -> None:
    files.result = Opening((opened("d/a.txt", (None, None), None),))
    frozen = replace(call("open_files"), shows_opened_files=True)
    text = await own.open_files(frozen, {"file_requests": [{"file_name": "d/a.txt"}]})
    assert text == "* Opened d/a.txt\n\nd/a.txt\ntext of d/a.txt"


@pytest.mark.parametrize(
    ("tool", "arguments", "refusal"),
    [
        ("open_files", {"file_requests": []}, "No file requests provided"),
        (
            "open_files",
            {"file_requests": [{"file_name": "a", "offset": -1}]},
            "Offset for file a must be >= 0 (0-indexed), got -1",
        ),
        ("open_files", {"file_requests": [{"file_name": "a", "length": 0}]}, "Length for file a must be >= 1, got 0"),
        ("grep_files", {"pattern": " "}, "Empty search pattern provided"),
        ("semantic_search_files", {"query": "\n"}, "Empty search query provided"),
    ],
)
async def test_bad_arguments_are_refused(
    own: FileTools, call: Call, tool: str, arguments: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(Refused) as refused:
        await getattr(own, tool)(call(tool), arguments)
    assert str(refused.value) == refusal


async def test_an_unavailable_service_is_named(files: Scripted, own: FileTools, call: Call) -> None:
    files.result = Unavailable("away")
    with pytest.raises(Refused) as refused:
        await own.grep_files(call("grep_files"), {"pattern": "x"})
    assert str(refused.value).startswith("Your files cannot be reached at the moment.")


async def test_grep_reports_pages(files: Scripted, own: FileTools, call: Call) -> None:
    matches = (
        FileMatch("d/a.py", 3, "def one():", ("# before",), ("    pass",)),
        FileMatch("d/b.pdf", 1, "One", (), (), 2),
    )
    files.result = FileMatches(matches, 45, (("d/a.py", 40), ("d/b.pdf", 5)), 9, {"timeout": 2}, next_offset=22)
    text = await own.grep_files(call("grep_files"), {"pattern": "one", "offset": 20})
    assert text == (
        "Found 45 total matches across 2 files (showing matches 21-22 of 45)\n"
        "Note: Skipped 2 files: not reached within the time limit\n"
        f"{'=' * 80}\n\nFiles with matches:\n  - d/a.py: 40 matches\n  - d/b.pdf: 5 matches\n\n"
        "\n=== d/a.py:3 ===\n  2: # before\n> 3: def one():\n  4:     pass\n"
        "\n=== d/b.pdf:1 === (page 2)\n> 1: One\n\n"
        'To see more matches, call: grep_files(pattern="one", offset=22)'
    )
    files.result = replace(files.result, next_offset=None, skipped={})
    assert (await own.grep_files(call("grep_files"), {"pattern": "one"})).endswith("\nNo more matches to show.")
    files.result = replace(files.result, total=1000, capped=True)
    last = await own.grep_files(call("grep_files"), {"pattern": "one"})
    assert last.startswith("Found 1000+ total matches across 2 files (showing matches 1-2 of 1000+)")
    assert last.endswith("There may be more matches beyond the collection limit.")
    files.result = replace(files.result, next_offset=20)
    more = await own.grep_files(call("grep_files"), {"pattern": "one", "include": "*.py"})
    assert more.endswith(
        'To see more matches, call: grep_files(pattern="one", include="*.py", offset=20)\n'
        "Note: Only the first 1000 matches were collected. There may be more matches beyond this limit."
    )


@pytest.mark.parametrize(
    ("searched", "skipped", "include", "text"),
    [
        (0, {}, None, "No files are currently attached to search"),
        (0, {}, "*.md", "No files match the filename pattern '*.md'"),
        (3, {}, None, "No matches found for pattern: 'x'"),
        (3, {}, "*.md", "No matches found for pattern: 'x' in files matching '*.md'"),
        (
            3,
            {"not_ready": 2},
            None,
            """No matches found for pattern: 'x' (searched 3 files, skipped 2)
Note: Skipped 2 files: not processed yet, or their processing failed""",
        ),
    ],
)
async def test_grep_without_matches(
    files: Scripted, own: FileTools, call: Call, searched: int, skipped: dict[str, int], include: str | None, text: str
) -> None:
    files.result = FileMatches((), 0, (), searched, skipped)
    assert await own.grep_files(call("grep_files"), {"pattern": "x", "include": include}) == text


async def test_semantic_search_names_lines(files: Scripted, own: FileTools, call: Call) -> None:
    long = "\n".join(f"row {number}" for number in range(25))
    files.result = FileHits((FileHit("d/a.txt", "One\ntwo", 3, 4), FileHit("d/b.pdf", long, 1, 25, 1, 2)), 1, True)
    text = await own.semantic_search_files(call("semantic_search_files"), {"query": "one"})
    head = "Found 2 semantic matches in 2 files for query: 'one'"
    assert text.startswith(
        f"{head}\n{'=' * len(head)}\nNote: 1 files cannot be searched yet\n"
        "Note: only words were searched, because the embedding service does not answer\n"
        "\n=== d/a.txt:3-4 ===\n  One\n  two\n\n=== d/b.pdf:1-25 === (pages 1-2)\n  row 0\n"
    )
    assert text.endswith("  row 19\n  ... [truncated 5 more lines]")
    files.result = FileHits(())
    none = await own.semantic_search_files(call("semantic_search_files"), {"query": "one"})
    assert none == "No semantic matches found for query: 'one'"
