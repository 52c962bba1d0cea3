"""Uploads in one stream, contents, lists and deletion of files."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh.types.v1 import paging_pb2
from mnemesh_kit import request_bounds
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.ids import new_id

from mnemesh_testkit.errors import refused
from mnemesh_testkit.suites.files.calls import ABSENT_FILE, ABSENT_FOLDER, Files, FilesCases, reason


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
        error = await refused(client.upload(folder.id, name, **header))
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
        assert (await refused(client.content(file.id, offset=-1))).field == "offset"
        assert (await refused(client.content(file.id, offset=9))).field == "offset"
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
        assert (await refused(client.names(filter=rpc.FileFilter(statuses=[99])))).field == "filter.statuses"  # type: ignore[list-item]

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
        monkeypatch.setattr(request_bounds, "MAX_STREAM_BYTES", 1_000)
        file = (await client.upload(folder.id, content=[bytes(600)] * 2)).file
        assert file.size_bytes == 1_200

    async def test_uploads_at_once_are_all_stored(self, client: Files, folder: pb.Folder) -> None:
        contents = [f"content {number}".encode() for number in range(10)]
        uploads = [client.upload(folder.id, f"{number}.txt", each) for number, each in enumerate(contents)]
        files = [answer.file for answer in await asyncio.gather(*uploads)]
        assert [await client.content(file.id) for file in files] == contents
        assert (await client.get_folder(folder.id)).file_count == 10
