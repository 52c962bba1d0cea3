"""Processing: texts, passages, retries, imports."""

import pytest
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as rpc

from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.suites.files.calls import ABSENT_FILE, REPLACE, Files, FilesCases, reason

TEXT = b"# Title\n\n  indented\nlast line\n"
LINES = ["# Title", "", "  indented", "last line"]
# Two pages, of which the second is empty. Readers restore the table of objects that is left out.
PDF = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R 5 0 R]/Count 2>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]/Contents 4 0 R/Resources<</Font<</F 6 0 R>>>>>>endobj
4 0 obj<</Length 44>>stream
BT /F 12 Tf 20 100 Td (Printed words.) Tj ET
endstream endobj
5 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]>>endobj
6 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj
trailer<</Root 1 0 R>>
"""


class Processing(FilesCases):
    """What the contract says of the states of a file and of its text."""

    async def test_text_file_is_completed(self, client: Files, folder: pb.Folder) -> None:
        uploaded = (await client.upload(folder.id, "a.md", TEXT)).file
        file = await client.wait_until_processed(uploaded.id)
        assert file.status == pb.FILE_STATUS_COMPLETED
        assert (file.total_lines, file.total_chars, file.media_type) == (4, len(TEXT) - 1, "text/markdown")
        assert (file.total_chunks, file.chunks_embedded) == (1, 1)
        assert not file.HasField("total_pages")
        assert not file.HasField("error_message")

    async def test_text_is_read_by_lines(self, client: Files, folder: pb.Folder) -> None:
        file = (await client.upload(folder.id, "a.md", TEXT)).file
        await client.wait_until_processed(file.id)

        async def text(**request: int) -> rpc.GetFileTextResponse:
            request_ = rpc.GetFileTextRequest(file_id=file.id, **request)
            return await client.files.GetFileText(request_)  # type: ignore[no-any-return]

        whole = await text()
        assert whole.text == "\n".join(LINES)
        assert (whole.view.start_line, whole.view.end_line, whole.view.total_lines) == (1, 4, 4)
        assert not whole.HasField("next_offset")
        part = await text(offset=1, length=2)
        assert part.text == "\n".join(LINES[1:3])
        assert (part.view.start_line, part.view.end_line) == (2, 3)
        assert not part.HasField("next_offset")
        assert (await text(offset=9)).text == ""
        for bad in ({"offset": -1}, {"length": 0}, {"length": -2}):
            assert (await catch_refusal(text(**bad))).field in bad

    async def test_long_text_is_read_in_parts(self, client: Files, folder: pb.Folder) -> None:
        lines = [f"{number} {'é' * 60_000}" for number in range(10)]
        file = (await client.upload(folder.id, "a.txt", _pieces("\n".join(lines).encode()))).file
        await client.wait_until_processed(file.id)
        read: list[str] = []
        offset: int | None = 0
        while offset is not None:
            request = rpc.GetFileTextRequest(file_id=file.id, offset=offset)
            part = await client.files.GetFileText(request)
            assert len(part.text.encode()) <= 1_000_000
            read += part.text.split("\n")
            offset = part.next_offset if part.HasField("next_offset") else None
        assert "".join(read) == "".join(lines)

    async def test_document_is_read_by_its_content_with_pages(self, client: Files, folder: pb.Folder) -> None:
        file = await client.wait_until_processed((await client.upload(folder.id, "a.txt", PDF)).file.id)
        assert file.status == pb.FILE_STATUS_COMPLETED, file.error_message
        assert (file.media_type, file.total_pages, file.total_lines) == ("application/pdf", 2, 1)
        assert list(file.warnings) == ["Pages without text, such as scanned images: 2."]
        answer = await client.files.GetFileText(rpc.GetFileTextRequest(file_id=file.id))
        assert answer.text == "Printed words."
        assert (answer.view.start_page, answer.view.end_page) == (1, 1)

    async def test_file_without_text_is_not_parsed(self, client: Files, folder: pb.Folder) -> None:
        file = (await client.upload(folder.id, "a.pdf", b"%PDF-1.7 broken")).file
        failed = await client.wait_until_processed(file.id)
        assert failed.status == pb.FILE_STATUS_ERROR
        assert failed.error_message
        error = await catch_refusal(client.files.GetFileText(rpc.GetFileTextRequest(file_id=file.id)))
        assert (error.reason, error.metadata["status"]) == ("FILE_NOT_READY", "ERROR")
        retried = await client.files.RetryFile(rpc.RetryFileRequest(file_id=file.id, request_id="r"))
        assert retried.file.status in {pb.FILE_STATUS_PENDING, pb.FILE_STATUS_PARSING}, "the worker may have begun"
        assert (await client.wait_until_processed(file.id)).status == pb.FILE_STATUS_ERROR
        assert await reason(client.files.RetryFile(rpc.RetryFileRequest(file_id=ABSENT_FILE))) == "NOT_FOUND"

    async def test_replaced_file_has_the_new_text(self, client: Files, folder: pb.Folder) -> None:
        file = (await client.upload(folder.id, "a.txt", b"old")).file
        await client.wait_until_processed(file.id)
        await client.upload(folder.id, "a.txt", b"new\nlines", duplicate_handling=REPLACE)
        replaced = await client.wait_until_processed(file.id)
        assert (replaced.status, replaced.revision, replaced.total_lines) == (pb.FILE_STATUS_COMPLETED, 2, 2)
        answer = await client.files.GetFileText(rpc.GetFileTextRequest(file_id=file.id))
        assert answer.text == "new\nlines"

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "ftp://example.com/a.txt",
            "file:///etc/passwd",
            "http://127.0.0.1/a.txt",
            "http://[::1]/a.txt",
            "http://169.254.169.254/latest/meta-data",
            "http://0x7f.1/a.txt",
            "https://user:secret@example.com/a.txt",
            "https://example.com:22/a.txt",
            "https://example.com/a\0.txt",
        ],
    )
    async def test_url_that_is_not_allowed_is_refused(self, client: Files, folder: pb.Folder, url: str) -> None:
        header = rpc.UploadFileHeader(folder_id=folder.id)
        error = await catch_refusal(client.files.ImportFile(rpc.ImportFileRequest(url=url, header=header)))
        assert (error.reason, error.field) == ("INVALID_ARGUMENT", "url")
        assert await client.names() == []


def _pieces(content: bytes) -> list[bytes]:
    return [content[start : start + 1_000_000] for start in range(0, len(content), 1_000_000)]
