"""Cases of uploads, of the processing of files, and of folders."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh.files.v1 import folders_service_pb2 as folders_rpc
from mnemesh.types.v1 import audit_pb2, paging_pb2
from mnemesh_kit import admission
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.ids import new_id

from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.plugin import sampled
from mnemesh_testkit.suites.files.calls import (
    ABSENT_FILE,
    ABSENT_FOLDER,
    ERROR,
    REPLACE,
    SKIP,
    SUFFIX,
    Files,
    FilesCases,
    reason,
)


class Uploads(FilesCases):
    """What the contract says of FileService, without processing."""

    async def test_uploaded_file_has_what_the_header_says(
        self, client: Files, folder: pb.Folder, caller: Principal
    ) -> None:
        content = [b"# One\n", b"", b"two\n"]
        joined = b"".join(content)
        answer = await client.upload(
            folder.id, "C:\\notes\\Re\u0301sume\u0301.md", content, path="notes/resume.md", metadata="{}",
            size_bytes=len(joined), sha256=hashlib.sha256(joined).hexdigest(),
        )  # fmt: skip
        file = answer.file
        assert answer.outcome == rpc.UPLOAD_OUTCOME_CREATED
        assert (file.name, file.original_name, file.folder_id) == ("R\u00e9sum\u00e9.md",) * 2 + (folder.id,)
        assert (file.media_type, file.size_bytes, file.revision) == ("text/markdown", len(joined), 1)
        assert file.sha256 == hashlib.sha256(joined).hexdigest()
        assert (file.path, file.metadata) == ("notes/resume.md", "{}")
        assert file.provenance.created_by_id == caller.subject_id
        assert await client.content(file.id) == joined
        assert await client.content(file.id, offset=6) == b"two\n"
        assert await client.content(file.id, offset=len(joined)) == b""
        counted = await client.get_folder(folder.id)
        assert (counted.file_count, counted.size_bytes) == (1, len(joined))

    async def test_name_and_media_type_of_the_client_are_kept(self, client: Files, folder: pb.Folder) -> None:
        file = (await client.upload(folder.id, "a.txt", name="b.dat", media_type="text/x-notes")).file
        assert (file.name, file.original_name, file.media_type) == ("b.dat", "a.txt", "text/x-notes")

    async def test_empty_file_is_stored(self, client: Files, folder: pb.Folder) -> None:
        file = (await client.upload(folder.id, content=[])).file
        assert (file.size_bytes, await client.content(file.id)) == (0, b"")

    @pytest.mark.parametrize(
        ("name", "header", "field"),
        [
            ("", {}, "header.original_name"),
            ("/", {}, "header.original_name"),
            ("a/..", {}, "header.original_name"),
            ("a\nb", {}, "header.original_name"),
            ("invoice\u202efdp.exe", {}, "header.original_name"),
            ("zero\u200bwidth", {}, "header.original_name"),
            ("x" * 256, {}, "header.original_name"),
            ("a", {"name": "../../etc/passwd"}, "header.name"),
            ("a", {"name": ""}, "header.name"),
            ("a", {"media_type": "text"}, "header.media_type"),
            ("a", {"metadata": "1"}, "header.metadata"),
            ("a", {"size_bytes": -1}, "header.size_bytes"),
            ("a", {"size_bytes": 7}, "header.size_bytes"),
            ("a", {"sha256": "00"}, "header.sha256"),
            ("a", {"sha256": "0" * 64}, "header.sha256"),
            ("a", {"path": "x" * 5_000}, "header.path"),
            ("a", {"duplicate_handling": 9}, "header.duplicate_handling"),
        ],
    )
    async def test_bad_header_is_refused_and_stores_nothing(
        self, client: Files, folder: pb.Folder, name: str, header: dict[str, Any], field: str
    ) -> None:
        error = await catch_refusal(client.upload(folder.id, name, **header))
        assert (error.reason, error.field) == ("INVALID_ARGUMENT", field)
        assert await client.names() == []

    async def test_stream_without_header_is_refused(self, client: Files, folder: pb.Folder) -> None:
        async def requests(*messages: rpc.UploadFileRequest) -> AsyncIterator[rpc.UploadFileRequest]:
            for message in messages:
                yield message

        header = rpc.UploadFileRequest(header=rpc.UploadFileHeader(folder_id=folder.id, original_name="a"))
        data = rpc.UploadFileRequest(data=b"a")
        for stream in ((), (data,), (header, header), (header, rpc.UploadFileRequest(data=bytes((1 << 20) + 1)))):
            assert await reason(client.files.UploadFile(requests(*stream))) == "INVALID_ARGUMENT"
        assert await client.names() == []

    async def test_repeated_upload_returns_the_first_file(self, client: Files, folder: pb.Folder) -> None:
        first = await client.upload(folder.id, request_id="r-1")
        again = await client.upload(folder.id, request_id="r-1")
        assert (again.file.id, again.outcome) == (first.file.id, first.outcome)
        for changed in ({"name": "other.txt"}, {"content": b"other"}):
            call = client.upload(folder.id, request_id="r-1", **changed)
            assert await reason(call) == "REQUEST_ID_REUSED"
        assert await client.names() == ["notes.txt"]

    async def test_absent_file_and_folder(self, client: Files, folder: pb.Folder) -> None:
        file = (await client.upload(folder.id)).file
        assert await reason(client.upload(ABSENT_FOLDER)) == "NOT_FOUND"
        assert await reason(client.file(ABSENT_FILE)) == "NOT_FOUND"
        assert await reason(client.content(ABSENT_FILE)) == "NOT_FOUND"
        assert await reason(client.delete(ABSENT_FILE)) == "NOT_FOUND"
        assert (await catch_refusal(client.content(file.id, offset=-1))).field == "offset"
        assert (await catch_refusal(client.content(file.id, offset=9))).field == "offset"
        with as_principal(Principal(new_id("org"), new_id("user"))):
            for call in (client.file(file.id), client.content(file.id), client.delete(file.id)):
                assert await reason(call) == "NOT_FOUND"

    async def test_lists_of_files_are_filtered_ordered_and_paged(self, client: Files, folder: pb.Folder) -> None:
        other = await client.folder("other")
        made = {name: (await client.upload(folder.id, name)).file for name in ("b.txt", "a.txt", "C.md")}
        await client.upload(other.id, "a.txt", name="d.txt")
        assert await client.names() == ["b.txt", "a.txt", "C.md", "d.txt"]
        assert await client.names(order=paging_pb2.SORT_ORDER_DESCENDING, page_size=2) == ["d.txt", "C.md"]
        assert await client.names(order_by=rpc.FILE_ORDER_BY_NAME) == ["C.md", "a.txt", "b.txt", "d.txt"]
        assert await client.names(after_id=made["b.txt"].id, page_size=1) == ["a.txt"]
        assert await client.names(filter=rpc.FileFilter(folder_id=other.id)) == ["d.txt"]
        assert await client.names(filter=rpc.FileFilter(name="a.txt")) == ["a.txt"]
        assert await client.names(filter=rpc.FileFilter(name_search="A.T")) == ["a.txt", "d.txt"]
        assert await client.names(filter=rpc.FileFilter(file_ids=[made["C.md"].id])) == ["C.md"]
        assert await client.names(filter=rpc.FileFilter(statuses=[pb.FILE_STATUS_FETCHING])) == []
        counted = await client.files.CountFiles(rpc.CountFilesRequest(filter=rpc.FileFilter(folder_id=folder.id)))
        assert counted.count == 3
        assert (await catch_refusal(client.names(filter=rpc.FileFilter(statuses=[99])))).field == "filter.statuses"  # type: ignore[list-item]

    async def test_deleted_file_is_gone_and_its_name_is_free(self, client: Files, folder: pb.Folder) -> None:
        kept = (await client.upload(folder.id, "kept.txt", b"same")).file
        file = (await client.upload(folder.id, "gone.txt", b"same")).file
        await client.delete(file.id, "d-1")
        await client.delete(file.id, "d-1")
        await client.delete(file.id)
        assert await reason(client.file(file.id)) == "NOT_FOUND"
        assert await client.content(kept.id) == b"same"
        assert await client.names() == ["kept.txt"]
        counted = await client.get_folder(folder.id)
        assert (counted.file_count, counted.size_bytes) == (1, 4)
        assert (await client.upload(folder.id, "gone.txt")).file.name == "gone.txt"

    async def test_upload_is_not_bounded_as_other_streams_are(
        self, client: Files, folder: pb.Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admission, "MAX_STREAM_BYTES", 1_000)
        file = (await client.upload(folder.id, content=[bytes(600)] * 2)).file
        assert file.size_bytes == 1_200

    async def test_uploads_at_once_are_all_stored(self, client: Files, folder: pb.Folder) -> None:
        contents = [f"content {number}".encode() for number in range(10)]
        uploads = [client.upload(folder.id, f"{number}.txt", each) for number, each in enumerate(contents)]
        files = [answer.file for answer in await asyncio.gather(*uploads)]
        assert [await client.content(file.id) for file in files] == contents
        assert (await client.get_folder(folder.id)).file_count == 10


CONTENT = bytes(range(256)) * 4
HASH = hashlib.sha256(CONTENT).hexdigest()


class Resuming(FilesCases):
    """What the contract says of StartUpload, WriteUpload, GetUpload, FinishUpload and CancelUpload."""

    async def test_upload_is_continued_where_it_broke(self, client: Files, folder: pb.Folder) -> None:
        upload = await start(client, folder.id, size_bytes=len(CONTENT), sha256=HASH, metadata="{}")
        assert (upload.received_bytes, upload.header.original_name) == (0, "a.bin")
        assert upload.expire_time.seconds - upload.create_time.seconds == 86_400
        assert (await write(client, upload.id, 0, CONTENT[:100], CONTENT[100:300])).received_bytes == 300
        got = (await client.files.GetUpload(rpc.GetUploadRequest(upload_id=upload.id))).upload
        assert got.received_bytes == 300
        gap = await catch_refusal(write(client, upload.id, 301, CONTENT[301:]))
        assert (gap.reason, gap.metadata["offset"]) == ("FAILED_PRECONDITION", "300")
        assert (await write(client, upload.id, 200, CONTENT[200:700])).received_bytes == 700
        assert (await write(client, upload.id, 0, CONTENT[:50])).received_bytes == 700
        early = await catch_refusal(finish(client, upload.id))
        assert (early.reason, early.field) == ("INVALID_ARGUMENT", "header.size_bytes")
        # What the server has is skipped, over the bounds of messages.
        again = await write(client, upload.id, 100, CONTENT[100:400], CONTENT[400:800], CONTENT[800:])
        assert again.received_bytes == len(CONTENT)
        done = await finish(client, upload.id, "f-1")
        assert (done.outcome, done.file.sha256, done.file.metadata) == (rpc.UPLOAD_OUTCOME_CREATED, HASH, "{}")
        assert (await finish(client, upload.id, "f-1")).file.id == done.file.id
        assert await client.content(done.file.id) == CONTENT
        assert await reason(finish(client, upload.id, "f-2")) == "NOT_FOUND"
        assert await reason(write(client, upload.id, 0, b"x")) == "NOT_FOUND"

    async def test_data_before_a_broken_stream_is_kept(self, client: Files, folder: pb.Folder) -> None:
        upload = await start(client, folder.id)

        async def broken() -> AsyncIterator[rpc.WriteUploadRequest]:
            yield rpc.WriteUploadRequest(upload_id=upload.id, data=CONTENT[:10])
            yield rpc.WriteUploadRequest(data=CONTENT[10:20])
            yield rpc.WriteUploadRequest(offset=7, data=b"x")

        assert await reason(client.files.WriteUpload(broken())) == "INVALID_ARGUMENT"
        got = (await client.files.GetUpload(rpc.GetUploadRequest(upload_id=upload.id))).upload
        assert got.received_bytes == 20

    async def test_repeated_start_returns_the_first_upload(self, client: Files, folder: pb.Folder) -> None:
        first = await start(client, folder.id, request_id="s-1")
        assert (await start(client, folder.id, request_id="s-1")).id == first.id
        assert (await start(client, folder.id)).id != first.id

    async def test_wrong_hash_is_refused_and_the_upload_is_kept(self, client: Files, folder: pb.Folder) -> None:
        upload = await start(client, folder.id, sha256="0" * 64)
        await write(client, upload.id, 0, CONTENT)
        assert (await catch_refusal(finish(client, upload.id))).field == "header.sha256"
        assert (await client.files.GetUpload(rpc.GetUploadRequest(upload_id=upload.id))).upload.received_bytes
        assert await client.names() == []

    async def test_cancelled_upload_is_gone(self, client: Files, folder: pb.Folder) -> None:
        upload = await start(client, folder.id)
        await write(client, upload.id, 0, CONTENT)
        for request_id in ("c-1", "c-1", "c-2"):
            await client.files.CancelUpload(rpc.CancelUploadRequest(upload_id=upload.id, request_id=request_id))
        assert await reason(finish(client, upload.id)) == "NOT_FOUND"
        assert await reason(client.files.GetUpload(rpc.GetUploadRequest(upload_id=upload.id))) == "NOT_FOUND"

    async def test_duplicate_is_decided_at_the_end(self, client: Files, folder: pb.Folder) -> None:
        upload = await start(client, folder.id, duplicate_handling=SKIP)
        first = (await client.upload(folder.id, "a.bin", b"first")).file
        await write(client, upload.id, 0, CONTENT)
        done = await finish(client, upload.id)
        assert (done.file.id, done.outcome) == (first.id, rpc.UPLOAD_OUTCOME_SKIPPED)

    async def test_writers_at_once_store_each_byte_once(self, client: Files, folder: pb.Folder) -> None:
        upload = await start(client, folder.id, sha256=HASH)
        calls = [write(client, upload.id, 0, CONTENT[:500], CONTENT[500:]) for _ in range(5)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert any(getattr(end, "received_bytes", 0) == len(CONTENT) for end in ends)
        assert (await finish(client, upload.id)).file.size_bytes == len(CONTENT)

    async def test_bad_requests(self, client: Files, folder: pb.Folder) -> None:
        upload = await start(client, folder.id)
        assert await reason(start(client, ABSENT_FOLDER)) == "NOT_FOUND"
        assert (await catch_refusal(start(client, folder.id, size_bytes=-1))).field == "header.size_bytes"
        assert (await catch_refusal(start(client, folder.id, size_bytes=1 << 60))).reason == "RESOURCE_EXHAUSTED"
        assert (await catch_refusal(write(client, "upload-1", 0, b"x"))).field == "upload_id"
        assert (await catch_refusal(write(client, upload.id, -1, b"x"))).field == "offset"
        assert await reason(write(client, new_id("upload"), 0, b"x")) == "NOT_FOUND"
        with as_principal(Principal(new_id("org"), new_id("user"))):
            assert await reason(write(client, upload.id, 0, b"x")) == "NOT_FOUND"


async def start(client: Files, folder_id: str, request_id: str = "", **header: Any) -> rpc.Upload:
    described = rpc.UploadFileHeader(folder_id=folder_id, original_name="a.bin", **header)
    request = rpc.StartUploadRequest(request_id=request_id, header=described)
    return (await client.files.StartUpload(request)).upload  # type: ignore[no-any-return]


async def write(client: Files, upload_id: str, offset: int, *pieces: bytes) -> rpc.Upload:
    """An upload after data was appended, in one message per piece."""

    async def requests() -> AsyncIterator[rpc.WriteUploadRequest]:
        yield rpc.WriteUploadRequest(upload_id=upload_id, offset=offset, data=pieces[0])
        for piece in pieces[1:]:
            yield rpc.WriteUploadRequest(data=piece)

    return (await client.files.WriteUpload(requests())).upload  # type: ignore[no-any-return]


async def finish(client: Files, upload_id: str, request_id: str = "") -> rpc.FinishUploadResponse:
    """The end of an upload."""
    request = rpc.FinishUploadRequest(upload_id=upload_id, request_id=request_id)
    return await client.files.FinishUpload(request)  # type: ignore[no-any-return]


AT_ONCE = 20


class Duplicates(FilesCases):
    """What the contract says of DuplicateHandling."""

    async def test_skip_returns_the_existing_file(self, client: Files, folder: pb.Folder) -> None:
        first = (await client.upload(folder.id)).file
        again = await client.upload(folder.id, content=b"new", duplicate_handling=SKIP)
        assert (again.file.id, again.outcome) == (first.id, rpc.UPLOAD_OUTCOME_SKIPPED)
        assert await client.content(first.id) == b"one\ntwo\n"

    async def test_error_names_the_file(self, client: Files, folder: pb.Folder) -> None:
        first = (await client.upload(folder.id)).file
        error = await catch_refusal(client.upload(folder.id, content=b"new", duplicate_handling=ERROR))
        assert (error.reason, error.metadata["resource_id"]) == ("ALREADY_EXISTS", first.id)
        assert await client.names() == ["notes.txt"]

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("a.txt", ["a.txt", "a_(1).txt", "a_(2).txt"]),
            (".profile", [".profile", ".profile_(1)", ".profile_(2)"]),
            ("100%_a.b", ["100%_a.b", "100%_a_(1).b", "100%_a_(2).b"]),
            ("x" * 251 + ".txt", ["x" * 251 + ".txt", "x" * 247 + "_(1).txt", "x" * 247 + "_(2).txt"]),
        ],
    )
    async def test_suffix_counts(self, client: Files, folder: pb.Folder, name: str, expected: list[str]) -> None:
        files = [(await client.upload(folder.id, name)).file for _ in expected]
        assert [file.name for file in files] == expected
        assert {file.original_name for file in files} == {name}

    async def test_suffixed_name_that_is_taken_is_left_out(self, client: Files, folder: pb.Folder) -> None:
        await client.upload(folder.id, "a_(1).txt")
        await client.upload(folder.id, "a_(x).txt")
        names = [(await client.upload(folder.id, "a.txt", duplicate_handling=SUFFIX)).file.name for _ in range(2)]
        assert names == ["a.txt", "a_(2).txt"]

    async def test_replace_keeps_the_id_and_has_the_new_content(self, client: Files, folder: pb.Folder) -> None:
        first = (await client.upload(folder.id, metadata='{"v": 1}')).file
        answer = await client.upload(folder.id, content=b"new", duplicate_handling=REPLACE)
        replaced = answer.file
        assert (replaced.id, answer.outcome, replaced.revision) == (first.id, rpc.UPLOAD_OUTCOME_REPLACED, 2)
        assert (replaced.size_bytes, replaced.HasField("metadata")) == (3, False)
        assert replaced.create_time == first.create_time
        assert await client.content(first.id) == b"new"
        counted = await client.get_folder(folder.id)
        assert (counted.file_count, counted.size_bytes) == (1, 3)

    async def test_equal_content_is_not_a_new_revision(self, client: Files, folder: pb.Folder) -> None:
        first = (await client.upload(folder.id)).file
        answer = await client.upload(folder.id, duplicate_handling=REPLACE, metadata='{"v": 2}')
        assert (answer.file.id, answer.outcome) == (first.id, rpc.UPLOAD_OUTCOME_REPLACED)
        assert (answer.file.revision, answer.file.metadata) == (1, '{"v": 2}')

    @pytest.mark.parametrize("handling", sampled([REPLACE, SKIP, ERROR, SUFFIX], 3))
    async def test_same_file_many_times_at_once(
        self, client: Files, folder: pb.Folder, handling: rpc.DuplicateHandling.ValueType
    ) -> None:
        calls = [client.upload(folder.id, duplicate_handling=handling) for _ in range(AT_ONCE)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        outcomes = Counter(
            getattr(answer, "reason", "") if isinstance(answer, BaseException) else answer.outcome for answer in answers
        )
        rest = {
            SKIP: rpc.UPLOAD_OUTCOME_SKIPPED,
            ERROR: "ALREADY_EXISTS",
            SUFFIX: rpc.UPLOAD_OUTCOME_CREATED,
            REPLACE: rpc.UPLOAD_OUTCOME_REPLACED,
        }[handling]
        assert outcomes == Counter({rpc.UPLOAD_OUTCOME_CREATED: 1}) + Counter({rest: AT_ONCE - 1})
        names = await client.names()
        suffixed = [f"notes_({number}).txt" for number in range(1, AT_ONCE)]
        assert sorted(names) == sorted(["notes.txt", *(suffixed if handling == SUFFIX else [])])
        counted = await client.get_folder(folder.id)
        assert (counted.file_count, counted.size_bytes) == (len(names), 8 * len(names))
        listed = await client.files.ListFiles(rpc.ListFilesRequest())
        assert {await client.content(file.id) for file in listed.files} == {b"one\ntwo\n"}
        assert {file.revision for file in listed.files} == {1}


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


class Folders(FilesCases):
    """What the contract says of FolderService."""

    async def test_new_folder_has_the_given_fields_the_defaults_and_an_archive(
        self, client: Files, caller: Principal
    ) -> None:
        given = {"description": "Of 2026", "instructions": "Quote pages.", "metadata": '{"a": 1}'}
        provenance = audit_pb2.Provenance(project_id="p-1", created_by_id="someone else")
        folder = await client.folder("Re\u0301sume\u0301s", provenance=provenance, **given)
        assert folder == await client.get_folder(folder.id)
        assert folder.id.startswith("source-")
        assert folder.archive_id.startswith("archive-")
        assert folder.name == "R\u00e9sum\u00e9s"
        assert {name: getattr(folder, name) for name in given} == given
        assert (folder.embedder, folder.chunk_size) == ("mnemesh/hashing-256", 300)
        assert (folder.file_count, folder.size_bytes) == (0, 0)
        assert folder.provenance.project_id == "p-1"
        assert folder.provenance.created_by_id == folder.provenance.last_updated_by_id == caller.subject_id
        assert folder.create_time == folder.update_time

    async def test_name_is_unique_in_the_organization(self, client: Files) -> None:
        folder = await client.folder()
        error = await catch_refusal(client.folder())
        assert (error.reason, error.field) == ("ALREADY_EXISTS", "folder.name")
        other = await client.folder("others")
        rename = folders_rpc.UpdateFolderRequest(
            folder=pb.Folder(id=other.id, name="reports"), update_mask=FieldMask(paths=["name"])
        )
        assert await reason(client.folders.UpdateFolder(rename)) == "ALREADY_EXISTS"
        with as_principal(Principal(new_id("org"), new_id("user"))):
            assert (await client.folder()).id != folder.id
        await client.delete_folder(folder.id)
        assert (await client.folder()).id != folder.id

    async def test_repeated_request_returns_the_first_folder(self, client: Files) -> None:
        first = await client.folder(request_id="r-1")
        assert await client.folder(request_id="r-1") == first
        assert await reason(client.folder("others", request_id="r-1")) == "REQUEST_ID_REUSED"
        count = await client.folders.CountFolders(folders_rpc.CountFoldersRequest())
        assert count.count == 1

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"name": ""}, "folder.name"),
            ({"name": "a/b"}, "folder.name"),
            ({"name": "a\u202eb"}, "folder.name"),
            ({"name": "x" * 256}, "folder.name"),
            ({"chunk_size": -1}, "folder.chunk_size"),
            ({"chunk_size": 1_000_000}, "folder.chunk_size"),
            ({"metadata": "[]"}, "folder.metadata"),
            ({"description": "a\0b"}, "folder.description"),
            ({"instructions": "x" * 10_001}, "folder.instructions"),
            ({"embedder": "a\nb"}, "folder.embedder"),
            ({"provenance": audit_pb2.Provenance(project_id="a\nb")}, "folder.provenance.project_id"),
        ],
    )
    async def test_bad_value_is_refused(self, client: Files, fields: dict[str, Any], field: str) -> None:
        error = await catch_refusal(client.folder(**fields))
        assert (error.reason, error.field) == ("INVALID_ARGUMENT", field)

    async def test_unknown_embedder_is_refused_and_leaves_the_name_free(self, client: Files) -> None:
        error = await catch_refusal(client.folder(embedder="nobody/nothing"))
        assert (error.reason, error.field) == ("EMBEDDER_UNKNOWN", "folder.embedder")
        await client.folder()

    async def test_lists_are_filtered_ordered_and_paged(self, client: Files) -> None:
        made = [await client.folder(name) for name in ("beta", "alpha", "Gamma")]
        provenance = audit_pb2.Provenance(project_id="p-1", template_id="t-1")
        made.append(await client.folder("delta", provenance=provenance))

        async def names(**request: Any) -> list[str]:
            return [
                folder.name
                for folder in (await client.folders.ListFolders(folders_rpc.ListFoldersRequest(**request))).folders
            ]

        assert await names() == ["beta", "alpha", "Gamma", "delta"]
        assert await names(order=paging_pb2.SORT_ORDER_DESCENDING, page_size=2) == ["delta", "Gamma"]
        assert await names(order_by=folders_rpc.FOLDER_ORDER_BY_NAME) == ["Gamma", "alpha", "beta", "delta"]
        assert await names(after_id=made[0].id, before_id=made[3].id) == ["alpha", "Gamma"]
        assert await names(filter=folders_rpc.FolderFilter(name="alpha")) == ["alpha"]
        assert await names(filter=folders_rpc.FolderFilter(name_search="AMM")) == ["Gamma"]
        assert await names(filter=folders_rpc.FolderFilter(folder_ids=[made[1].id, ABSENT_FOLDER])) == ["alpha"]
        assert await names(filter=folders_rpc.FolderFilter(project_id="p-1", template_id="t-1")) == ["delta"]
        assert await names(filter=folders_rpc.FolderFilter(project_id="p-2")) == []
        page = await client.folders.ListFolders(folders_rpc.ListFoldersRequest(page_size=3))
        assert await names(page_size=3, page_token=page.next_page_token) == ["delta"]
        counted = await client.folders.CountFolders(
            folders_rpc.CountFoldersRequest(filter=folders_rpc.FolderFilter(name_search="a"))
        )
        assert counted.count == 4

    async def test_update_sets_the_named_fields_and_clears_absent_ones(self, client: Files) -> None:
        folder = await client.folder(description="old", instructions="kept", metadata="{}")
        mask = FieldMask(paths=["name", "description", "provenance.project_id"])
        changed = pb.Folder(id=folder.id, name=" new ", instructions="ignored", embedder="ignored/x")
        changed.provenance.project_id = "p-2"
        request = folders_rpc.UpdateFolderRequest(folder=changed, update_mask=mask, request_id="u-1")
        updated = (await client.folders.UpdateFolder(request)).folder
        assert (updated.name, updated.HasField("description"), updated.instructions) == ("new", False, "kept")
        assert (updated.provenance.project_id, updated.embedder) == ("p-2", folder.embedder)
        assert updated.update_time.ToNanoseconds() > folder.update_time.ToNanoseconds()
        assert (await client.folders.UpdateFolder(request)).folder == updated
        for paths in ([], ["embedder"], ["nothing"]):
            request = folders_rpc.UpdateFolderRequest(folder=changed, update_mask=FieldMask(paths=paths))
            assert (await catch_refusal(client.folders.UpdateFolder(request))).field == "update_mask"

    async def test_deleted_folder_is_gone_with_its_files(self, client: Files, folder: pb.Folder) -> None:
        file = (await client.upload(folder.id)).file
        await client.delete_folder(folder.id)
        await client.delete_folder(folder.id)
        assert await reason(client.get_folder(folder.id)) == "NOT_FOUND"
        assert await reason(client.file(file.id)) == "NOT_FOUND"
        assert await reason(client.upload(folder.id)) == "NOT_FOUND"
        assert await client.names() == []

    async def test_absent_folder(self, client: Files, folder: pb.Folder) -> None:
        assert await reason(client.get_folder(ABSENT_FOLDER)) == "NOT_FOUND"
        assert await reason(client.delete_folder(ABSENT_FOLDER)) == "NOT_FOUND"
        assert (await catch_refusal(client.get_folder("source-1"))).field == "folder_id"
        with as_principal(Principal(new_id("org"), new_id("user"))):
            assert await reason(client.get_folder(folder.id)) == "NOT_FOUND"
            assert await reason(client.upload(folder.id)) == "NOT_FOUND"
