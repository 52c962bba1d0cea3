"""Blob stores: a directory, and a bucket of an S3-compatible server."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from mnemesh_files.blobs.contents import BlobStore, LocalBlobStore
from mnemesh_files.blobs.s3 import PART_BYTES, S3BlobStore, S3Settings
from mnemesh_files.errors import ContentMissing
from mnemesh_kit.errors import Unavailable

LARGE = os.urandom(1000) * (PART_BYTES // 1000 + 2_000)


@pytest.fixture(scope="module")
def bucket() -> Iterator[S3Settings]:
    """A bucket of a server that implements S3."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = S3Settings("files", "mnemesh/", f"http://{host}:{port}", "us-east-1", "key", "secret")
    access: dict[str, Any] = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    client = boto3.client("s3", endpoint_url=settings.endpoint_url, region_name="us-east-1", **access)
    client.create_bucket(Bucket="files")
    client.close()
    yield settings
    server.stop()


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.full)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    """An empty blob store."""
    if request.param == "local":
        return LocalBlobStore(tmp_path / "files")
    return S3BlobStore(request.getfixturevalue("bucket"))


async def stored(store: BlobStore, blob_id: str, *pieces: bytes) -> None:
    """Stores a content."""
    writer = await store.create(blob_id)
    for piece in pieces:
        await writer.write(piece)
    await writer.finish()


async def content(store: BlobStore, blob_id: str, offset: int = 0) -> bytes:
    """A stored content."""
    return b"".join([piece async for piece in store.read(blob_id, offset)])


@pytest.mark.parametrize("pieces", [(), (b"one", b"two"), (LARGE[:-5], LARGE[-5:])], ids=["empty", "small", "large"])
async def test_content_is_read_as_it_was_written(store: BlobStore, pieces: tuple[bytes, ...]) -> None:
    whole = b"".join(pieces)
    await stored(store, "blob-1", *pieces)
    assert await content(store, "blob-1") == whole
    assert await content(store, "blob-1", 2) == whole[2:]
    assert await content(store, "blob-1", len(whole)) == b""
    async with store.local_copy("blob-1") as path:
        assert path.read_bytes() == whole
    await store.delete("blob-1")
    await store.delete("blob-1")
    with pytest.raises(ContentMissing):
        await content(store, "blob-1")
    with pytest.raises(ContentMissing):
        async with store.local_copy("blob-1"):
            pass
    await store.close()


async def test_unfinished_content_cannot_be_read_and_is_discarded(store: BlobStore) -> None:
    aborted = await store.create("blob-2")
    await aborted.write(b"data")
    await aborted.abort()
    await aborted.abort()
    left = await store.create("blob-3")
    await left.write(LARGE)
    for blob_id in ("blob-2", "blob-3"):
        with pytest.raises(ContentMissing):
            await content(store, blob_id)
    assert await store.discard_unfinished(datetime(2001, 1, 1, tzinfo=UTC)) == 0  # the fake server says 2010 of all
    assert await store.discard_unfinished(datetime.now(UTC) + timedelta(seconds=5)) == 1
    assert await store.discard_unfinished(datetime.now(UTC) + timedelta(seconds=5)) == 0
    await left.abort()
    await store.close()


@pytest.mark.full
async def test_server_that_refuses_is_unavailable(bucket: S3Settings) -> None:
    store = S3BlobStore(S3Settings("absent", "", bucket.endpoint_url, "us-east-1", "key", "secret"))
    with pytest.raises(Unavailable, match="NoSuchBucket"):
        await store.create("blob-1")
    await store.close()


async def test_directory_that_cannot_be_used_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("a file where the directory should be")
    with pytest.raises(Unavailable):
        await LocalBlobStore(tmp_path / "files").create("blob-1")
