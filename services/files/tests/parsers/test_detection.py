"""The format of a file: its content decides against its name."""

import pytest
from mnemesh_files.parsers.document import Cause, DocumentUnreadable
from mnemesh_files.parsers.formats import Format, detect


@pytest.mark.parametrize(
    ("head", "name", "media_type", "format_", "found"),
    [
        (b"text", "a.txt", None, Format.TEXT, "text/plain"),
        (b"text", "a.unknown", None, Format.TEXT, "text/plain"),
        (b"text", "README", "text/markdown; charset=utf-8", Format.TEXT, "text/markdown"),
        (b"text", "a.py", "text/markdown", Format.TEXT, "text/x-python"),
        (b"text", "a.pdf", "application/pdf", Format.TEXT, "text/plain"),
        (b"a,b", "A.CSV", None, Format.TEXT, "text/csv"),
        (b"FROM x", "Dockerfile", None, Format.TEXT, "text/x-dockerfile"),
        (b"%PDF-1.7\n", "a.txt", None, Format.PDF, "application/pdf"),
        (b"\xef\xbb\xbfjunk\n\x00%PDF-1.4", "a", None, Format.PDF, "application/pdf"),
        (b"# About %PDF-1.7 files\n", "a.md", None, Format.TEXT, "text/markdown"),
        (b"PK\x03\x04....", "a.txt", None, Format.OFFICE, "application/zip"),
        (b"\x89PNG\r\n\x1a\n", "a.pdf", None, Format.IMAGE, "image/png"),
        (b"\xff\xd8\xff\xe0", "a.txt", None, Format.IMAGE, "image/jpeg"),
        (b"RIFF....WEBPVP8 ", "a.txt", None, Format.IMAGE, "image/webp"),
        (b"\xef\xbb\xbf <!-- x --><!DOCTYPE html><html>", "a.txt", None, Format.HTML, "text/html"),
        (b"<p>fragment</p>", "a.HTM", None, Format.HTML, "text/html"),
        (b"<html><?php echo 1 ?>", "a.php", None, Format.TEXT, "text/x-php"),
        (b"<p align=center>", "README.md", None, Format.TEXT, "text/markdown"),
    ],
)
def test_the_format_of_a_file(head: bytes, name: str, media_type: str | None, format_: Format, found: str) -> None:
    detected = detect(head, name, media_type)

    assert (detected.format, detected.file_type.media_type) == (format_, found)


@pytest.mark.parametrize(("head", "what"), [(b"\x1f\x8b\x08", "a gzip file"), (b"....ftypisom", "a video")])
def test_a_format_without_a_parser_is_named(head: bytes, what: str) -> None:
    with pytest.raises(DocumentUnreadable, match=f"The file is {what}, which no parser reads. Upload") as refused:
        detect(head, "a.txt")
    assert refused.value.cause is Cause.UNSUPPORTED


def test_detection_of_html_ends_for_many_comments() -> None:
    """A pattern that tries every division of the comments would not end."""
    assert detect(b"<!-- -->" * 1000, "a.txt").format is Format.TEXT
