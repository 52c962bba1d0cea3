"""Parsing in the sandbox: at each level, and under documents that control the parser."""

import io
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_files.clients import PictureUnreadable
from mnemesh_files.parsers.document import DEFAULT_LIMITS, Cause, DocumentKind, DocumentUnreadable, ParserUnavailable
from mnemesh_files.parsers.parser import DocumentParser, sandbox_settings
from mnemesh_sandbox import Access, Isolation, Level, Outcome, Sandbox, SandboxSettings, Task
from mnemesh_sandbox.inside import plan as layer
from mnemesh_testkit.plugin import sampled
from PIL import Image

from . import documents

_AS_ROOT = {layer.OWN_UID} if os.geteuid() == 0 else set()
_LEVELS = {
    "all layers": None,
    "no namespaces": {layer.LANDLOCK, layer.SECCOMP} | _AS_ROOT,
    "minimal": {layer.SECCOMP} | (_AS_ROOT or {layer.LANDLOCK}),
}
_SETTINGS = sandbox_settings(SandboxSettings(minimum=Level.MINIMAL))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    opened = await Sandbox.open(_SETTINGS)
    yield opened
    await opened.close()


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(content: bytes) -> Path:
        path = tmp_path / "content"
        path.write_bytes(content)
        path.chmod(0o600)
        return path

    return write


class _Hostile(Sandbox):
    """A sandbox in which the document has taken over the parser."""

    def __init__(self, sandbox: Sandbox, body: str) -> None:
        super().__init__(sandbox._settings, sandbox.isolation, sandbox._cgroups)
        self._endings = sandbox._endings
        self._source = f"def parse(content, document_format, media_type, limits):\n    {body}\n"

    async def run(
        self,
        task: Task,
        seconds: float,
        access: Access = Access(),  # noqa: B008
        held: AsyncExitStack | None = None,
    ) -> Outcome:
        return await super().run(replace(task, source=self._source), seconds, access, held)


def _opened(sandbox: Sandbox) -> Callable[[], Awaitable[Sandbox]]:
    async def opened() -> Sandbox:
        return sandbox

    return opened


@pytest.mark.parametrize("level", _LEVELS)
async def test_a_document_is_parsed_at_each_level(level: str, written: Any) -> None:
    opened = await Sandbox.open(_SETTINGS, layers=_LEVELS[level])
    parser = DocumentParser(_opened(opened))

    parsed = await parser.parse(written(documents.pdf()), "a.pdf")
    await opened.close()

    assert parsed.lines[0] == "First page."
    assert parsed.total_pages == 3


async def test_a_host_without_isolation_parses_text_only(written: Any) -> None:
    weak = Isolation(frozenset({layer.SECCOMP, layer.LANDLOCK}), {"own_uid": "EPERM"})
    parser = DocumentParser(_opened(Sandbox(SandboxSettings(minimum=Level.RESTRICTED), weak)))

    with pytest.raises(ParserUnavailable, match=r"level restricted; this host provides minimal .*own_uid: EPERM"):
        await parser.parse(written(documents.pdf()), "a.pdf")
    parsed = await parser.parse(written(b"def f(): ..."), "a.py")
    assert (parsed.kind, parsed.text) == (DocumentKind.CODE, "def f(): ...")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("body", "cause", "words"),
    sampled(
        [
            ("import os; os._exit(0)", Cause.FAILED, "the parser ended without a result"),
            ("import os; os.abort()", Cause.FAILED, "more than 1,024 MB of memory, or is damaged"),
            ("x = bytearray(5 << 30)", Cause.TOO_LARGE, "more than 1,024 MB of memory"),
            ("return 'nonsense'", Cause.FAILED, "the parser ended without a result"),
            ("return '[]'", Cause.FAILED, "the parser ended without a result"),
            ('return \'{"document": {"kind": "code", "text": 1}}\'', Cause.FAILED, "the parser ended without"),
            (
                'return \'{"document": {"kind": "code", "media_type": "x", "page_starts": [9]}}\'',
                Cause.FAILED,
                "the parser ended without",
            ),
            ("return '[' * 10**6", Cause.FAILED, "the parser ended without a result"),
            ("return 'x' * 10**8", Cause.FAILED, "the parser ended without a result"),
        ],
        2,
    ),
)
async def test_a_parser_under_hostile_control_fails(
    sandbox: Sandbox, written: Any, body: str, cause: Cause, words: str
) -> None:
    with pytest.raises(DocumentUnreadable, match=words) as refused:
        await DocumentParser(_opened(_Hostile(sandbox, body))).parse(written(b"%PDF-1.7"), "a.pdf")
    assert refused.value.cause is cause


@pytest.mark.asyncio(loop_scope="module")
async def test_a_parser_that_hangs_is_stopped(sandbox: Sandbox, written: Any) -> None:
    parser = DocumentParser(_opened(_Hostile(sandbox, "while True: pass")), replace(DEFAULT_LIMITS, seconds=0.2))

    with pytest.raises(DocumentUnreadable, match=r"takes more than 0\.2 seconds to read") as refused:
        await parser.parse(written(b"%PDF-1.7"), "a.pdf")
    assert refused.value.cause is Cause.TOO_SLOW


@pytest.mark.asyncio(loop_scope="module")
async def test_text_of_a_hostile_parser_has_the_promised_form(sandbox: Sandbox, written: Any) -> None:
    value = {"kind": "code", "media_type": "x", "text": "a\0\ud800\r\nb\u2028", "title": "x\ny", "warnings": ["a\nb"]}
    body = f"import json; return json.dumps({{'document': {value!r}}})"

    parsed = await DocumentParser(_opened(_Hostile(sandbox, body))).parse(written(b"%PDF-1.7"), "a.pdf")

    assert parsed.lines == ("a\ufffd?", "b ")
    assert (parsed.title, parsed.warnings) == ("x y", ("a b",))


class _Reader:
    """Reads each picture as its size and the number of the call, or fails."""

    def __init__(self, cause: str = "") -> None:
        self.cause = cause
        self.pictures: list[bytes] = []

    async def read(self, picture: bytes, media_type: str) -> str:
        assert media_type == "image/jpeg"
        self.pictures.append(picture)
        if self.cause:
            raise PictureUnreadable(self.cause)
        return f"# Scan {len(self.pictures)}\n\ntext\n"

    async def close(self) -> None:
        return None


@pytest.mark.asyncio(loop_scope="module")
async def test_pages_without_text_are_read_by_a_model(sandbox: Sandbox, written: Any) -> None:
    reader = _Reader()
    parsed = await DocumentParser(_opened(sandbox), pictures=reader).parse(written(documents.pdf()), "a.pdf")

    assert parsed.lines == (
        *("First page.", "It has two lines.", ""),
        *("# Scan 1", "", "text", ""),
        "Third page.",
    )
    assert (parsed.page_starts, parsed.total_pages) == ((1, 4, 8), 3)
    assert parsed.warnings == ("A model read the text of pages that are images: 1.",)
    assert max(Image.open(io.BytesIO(reader.pictures[0])).size) == 1600


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("pages", [1, 30])
async def test_a_model_that_reads_nothing_leaves_a_warning(sandbox: Sandbox, written: Any, pages: int) -> None:
    reader = _Reader("the model cannot be reached")
    parsed = await DocumentParser(_opened(sandbox), pictures=reader).parse(written(documents.empty_pdf(pages)), "a.pdf")

    assert (parsed.text, parsed.total_pages) == ("", pages)
    assert parsed.warnings[1:] == (
        "Pages that are images have no text: the model cannot be reached. Process the file again to try again.",
    )
    assert len(reader.pictures) == min(pages, 4)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("answer", ["'[]'", "'{}'", "'[\"eA==\"]'", "'x'", "__import__('os')._exit(0)"])
async def test_pictures_of_a_hostile_parser_are_not_sent(sandbox: Sandbox, written: Any, answer: str) -> None:
    document = {"kind": "prose", "media_type": "application/pdf", "page_starts": [1], "total_pages": 1}
    body = f"return __import__('json').dumps({{'document': {document!r}}})"
    source = f"{body}\n\ndef page_pictures(content, pages):\n    return {answer}"
    reader = _Reader()
    parsed = await DocumentParser(_opened(_Hostile(sandbox, source)), pictures=reader).parse(
        written(b"%PDF-1.7"), "a.pdf"
    )

    assert reader.pictures == []
    assert "a page cannot be drawn" in parsed.warnings[0]


async def test_a_document_beyond_the_size_is_not_read(written: Any) -> None:
    parser = DocumentParser(_opened(Sandbox(_SETTINGS, Isolation(frozenset()))), replace(DEFAULT_LIMITS, document_mb=0))

    with pytest.raises(DocumentUnreadable, match="The document has 1 MB; at most 0 MB are parsed") as refused:
        await parser.parse(written(b"%PDF-1.7" + b" " * 1_100_000), "a.pdf")
    assert refused.value.cause is Cause.TOO_LARGE


async def test_a_missing_file_is_an_error_of_the_host(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await DocumentParser(_opened(Sandbox(_SETTINGS, Isolation(frozenset())))).parse(tmp_path / "missing", "a.txt")


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="module")
async def test_a_decompression_bomb_in_a_pdf_is_an_error(sandbox: Sandbox, written: Any) -> None:
    limits = replace(DEFAULT_LIMITS, memory_mb=256)
    small = sandbox.with_settings(sandbox_settings(SandboxSettings(minimum=Level.MINIMAL), limits))

    with pytest.raises(DocumentUnreadable, match="more than 256 MB of memory"):
        await DocumentParser(_opened(small), limits).parse(written(documents.pdf_bomb()), "a.pdf")
