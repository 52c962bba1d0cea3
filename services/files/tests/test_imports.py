"""Imports by URL: the rules of egress at each hop, limits, failures and repetition."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.suites.files.calls import REPLACE, SKIP

from .service import Service, opened

TEXT = b"# Imported\n\nA text from another server.\n"


class Site:
    """A web server with one answer for each path."""

    def __init__(self) -> None:
        self.port = 0
        self.answers: dict[str, bytes] = {}

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        """The URL of a path."""
        return f"http://{host}:{self.port}{path}"

    def put(self, path: str, body: bytes = b"", status: str = "200 OK", **headers: str) -> None:
        """Sets the answer for a path."""
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.answers[path] = "\r\n".join([*lines, "", ""]).encode() + body

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        writer.write(self.answers.get(head.split(" ")[1], b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
        await writer.drain()
        writer.close()


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    """A web server on this machine."""
    site = Site()
    server = await asyncio.start_server(site.handle, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    yield site
    server.close()
    await server.wait_closed()


@pytest_asyncio.fixture
async def service(tmp_path: Path, archival: Any) -> AsyncIterator[Service]:
    """The service, which may download from this machine."""
    async with opened(tmp_path, archival, FrozenClock(), max_file_mb=1) as service:
        yield service


async def imported(service: Service, url: str, folder_id: str, **header: Any) -> rpc.ImportFileResponse:
    """Starts an import."""
    described = rpc.UploadFileHeader(folder_id=folder_id, **header)
    return await service.client.files.ImportFile(  # type: ignore[no-any-return]
        rpc.ImportFileRequest(url=url, header=described)
    )


async def test_file_is_downloaded_and_processed(service: Service, site: Site) -> None:
    site.put("/notes/imported%20page", status="302 Found", Location="/final")
    site.put("/final", TEXT, Content_Type="text/markdown; charset=utf-8")
    folder = await service.client.folder()
    url = site.url("/notes/imported%20page")
    file = (await imported(service, f"{url}#part", folder.id, sha256=hashlib.sha256(TEXT).hexdigest())).file
    assert (file.status, file.name, file.source_url) == (pb.FILE_STATUS_FETCHING, "imported page", url)
    assert (file.size_bytes, file.sha256) == (0, "")
    await service.work()
    done = await service.client.file(file.id)
    assert (done.status, done.size_bytes, done.media_type) == (pb.FILE_STATUS_COMPLETED, len(TEXT), "text/markdown")
    assert await service.client.content(file.id) == TEXT
    assert (await service.client.get_folder(folder.id)).size_bytes == len(TEXT)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/absent", "404"),
        ("/to-metadata", "not public"),
        ("/to-file", "not valid"),
        ("/loop", "redirects"),
        ("/large", "larger than 1 MB"),
    ],
)
async def test_failed_download_is_an_error_of_the_file(service: Service, site: Site, path: str, problem: str) -> None:
    site.put("/to-metadata", status="302 Found", Location="http://169.254.169.254/latest/meta-data")
    site.put("/to-file", status="302 Found", Location="file:///etc/passwd")
    site.put("/loop", status="302 Found", Location="/loop")
    site.put("/large", bytes((1 << 20) + 1))
    folder = await service.client.folder()
    file = (await imported(service, site.url(path), folder.id)).file
    await service.work()
    failed = await service.client.file(file.id)
    assert failed.status == pb.FILE_STATUS_ERROR
    assert problem in failed.error_message
    assert service.blobs() == []


async def test_name_that_resolves_to_this_machine_is_refused(tmp_path: Path, archival: Any, site: Site) -> None:
    site.put("/secret", TEXT)
    async with opened(tmp_path, archival, FrozenClock(), private_networks="") as service:
        folder = await service.client.folder()
        file = (await imported(service, site.url("/secret", "localhost"), folder.id)).file
        await service.work()
        failed = await service.client.file(file.id)
        assert failed.status == pb.FILE_STATUS_ERROR
        assert "not public" in failed.error_message
        assert "MNEMESH_FILES_PRIVATE_NETWORKS" in failed.error_message


async def test_imports_can_be_off(tmp_path: Path, archival: Any, site: Site) -> None:
    async with opened(tmp_path, archival, FrozenClock(), imports="none") as service:
        folder = await service.client.folder()
        with pytest.raises(Exception, match="MNEMESH_FILES_IMPORTS"):
            await imported(service, site.url("/a"), folder.id)


async def test_wrong_content_is_refused_and_can_be_fetched_again(service: Service, site: Site) -> None:
    site.put("/a.txt", b"wrong")
    folder = await service.client.folder()
    file = (await imported(service, site.url("/a.txt"), folder.id, size_bytes=len(TEXT))).file
    await service.work()
    failed = await service.client.file(file.id)
    assert (failed.status, "5 bytes" in failed.error_message) == (pb.FILE_STATUS_ERROR, True)
    site.put("/a.txt", TEXT)
    retried = (await service.client.files.RetryFile(rpc.RetryFileRequest(file_id=file.id))).file
    assert (retried.status, retried.HasField("error_message")) == (pb.FILE_STATUS_FETCHING, False)
    await service.work()
    assert (await service.client.file(file.id)).status == pb.FILE_STATUS_COMPLETED


async def test_replaced_file_keeps_its_content_until_the_new_one_is_there(service: Service, site: Site) -> None:
    folder = await service.client.folder()
    file = (await service.client.upload(folder.id, "a.txt", b"old")).file
    await service.work()
    skipped = await imported(service, site.url("/a.txt"), folder.id, duplicate_handling=SKIP)
    assert (skipped.file.id, skipped.outcome) == (file.id, rpc.UPLOAD_OUTCOME_SKIPPED)
    replaced = await imported(service, site.url("/a.txt"), folder.id, duplicate_handling=REPLACE)
    assert (replaced.file.id, replaced.outcome) == (file.id, rpc.UPLOAD_OUTCOME_REPLACED)
    await service.work()
    assert (await service.client.file(file.id)).status == pb.FILE_STATUS_ERROR
    assert await service.client.content(file.id) == b"old"
    site.put("/a.txt", TEXT)
    await service.client.files.RetryFile(rpc.RetryFileRequest(file_id=file.id))
    await service.work()
    done = await service.client.file(file.id)
    assert (done.status, done.revision, done.size_bytes) == (pb.FILE_STATUS_COMPLETED, 2, len(TEXT))
    await service.work(advance=7200)
    assert len(service.blobs()) == 1
