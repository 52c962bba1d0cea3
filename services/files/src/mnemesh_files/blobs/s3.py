"""A blob store in a bucket of an S3-compatible server, over boto3 in threads."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import Unavailable
from mnemesh_kit.extras import install_hint

from mnemesh_files.blobs.contents import PIECE_BYTES
from mnemesh_files.errors import ContentMissing

if TYPE_CHECKING:
    from botocore.client import BaseClient

T = TypeVar("T")

PART_BYTES: Final = 8 * 1024 * 1024
"""The size of the parts of a content. S3 allows no smaller ones than 5 MB, except for the last."""
_MISSING: Final = frozenset({"NoSuchKey", "404", "NoSuchUpload"})
_log = structlog.get_logger("mnemesh.files")


@dataclass(frozen=True, slots=True)
class S3Settings:
    """The bucket and the access to it."""

    bucket: str
    prefix: str = ""
    """Begins every key, for example "mnemesh/"."""
    endpoint_url: str = ""
    """The server. Empty: AWS."""
    region: str = ""
    access_key_id: str = ""
    """Empty: boto3 looks for credentials in the environment of the process."""
    secret_access_key: str = field(default="", repr=False)


class S3BlobStore:
    """See BlobStore. Keys are `<prefix><blob id>`."""

    def __init__(self, settings: S3Settings) -> None:
        """Creates the client. Nothing is connected. Raises StartupError if boto3 is not installed."""
        try:
            import boto3  # noqa: PLC0415 - it takes 20 MB and is needed only if it is configured
            from botocore.config import Config  # noqa: PLC0415
        except ImportError as error:
            raise StartupError(
                f"MNEMESH_FILES_S3_BUCKET is set, but boto3 is not installed. {install_hint('mnemesh-files', 's3')}"
            ) from error

        self._settings = settings
        self._client: BaseClient = boto3.client(
            "s3",
            endpoint_url=settings.endpoint_url or None,
            region_name=settings.region or None,
            aws_access_key_id=settings.access_key_id or None,
            aws_secret_access_key=settings.secret_access_key or None,
            config=Config(
                connect_timeout=5, read_timeout=60, retries={"max_attempts": 3, "mode": "standard"},
                max_pool_connections=16,
            ),
        )  # fmt: skip

    async def create(self, blob_id: str) -> "S3Writer":
        """See BlobStore.create."""
        created = await self.call("create_multipart_upload", Key=self._key(blob_id))
        return S3Writer(self, self._key(blob_id), created["UploadId"])

    async def read(self, blob_id: str, offset: int = 0) -> AsyncIterator[bytes]:
        """See BlobStore.read."""
        size = await self._size(blob_id)
        if offset >= size:
            return
        got = await self._find(blob_id, "get_object", Range=f"bytes={offset}-")
        body = got["Body"]
        try:
            while piece := await _in_thread(lambda: body.read(PIECE_BYTES)):
                yield piece
        finally:
            await asyncio.to_thread(body.close)

    @asynccontextmanager
    async def local_copy(self, blob_id: str) -> AsyncIterator[Path]:
        """See BlobStore.local_copy. A temporary file, which is removed at the end."""
        descriptor, name = tempfile.mkstemp(prefix="mnemesh-file-")
        path = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                async for piece in self.read(blob_id):
                    await _in_thread(lambda piece=piece: file.write(piece))  # type: ignore[misc]
            yield path
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def delete(self, blob_id: str) -> None:
        """See BlobStore.delete."""
        await self.call("delete_object", Key=self._key(blob_id))

    async def discard_unfinished(self, before: datetime) -> int:
        """See BlobStore.discard_unfinished."""
        listed = await self.call("list_multipart_uploads", Prefix=self._settings.prefix)
        old = [upload for upload in listed.get("Uploads", ()) if upload["Initiated"] < before]
        for upload in old:
            await self.abort(upload["Key"], upload["UploadId"])
        return len(old)

    async def close(self) -> None:
        """See BlobStore.close."""
        await asyncio.to_thread(self._client.close)

    async def call(self, operation: str, **arguments: Any) -> Any:
        """Returns the answer to an operation on the bucket. Raises Unavailable."""
        method = getattr(self._client, operation)
        return await _in_thread(lambda: method(Bucket=self._settings.bucket, **arguments))

    async def abort(self, key: str, upload_id: str) -> None:
        """Discards a multipart upload."""
        try:
            await self.call("abort_multipart_upload", Key=key, UploadId=upload_id)
        except FileNotFoundError:
            return

    async def _size(self, blob_id: str) -> int:
        return int((await self._find(blob_id, "head_object"))["ContentLength"])

    async def _find(self, blob_id: str, operation: str, **arguments: Any) -> Any:
        try:
            return await self.call(operation, Key=self._key(blob_id), **arguments)
        except FileNotFoundError:
            raise ContentMissing(blob_id) from None

    def _key(self, blob_id: str) -> str:
        return f"{self._settings.prefix}{blob_id}"


class S3Writer:
    """See BlobWriter. A multipart upload, of which one part is in memory at a time."""

    def __init__(self, store: S3BlobStore, key: str, upload_id: str) -> None:
        self._store = store
        self._key = key
        self._upload_id = upload_id
        self._buffer = bytearray()
        self._parts: list[dict[str, Any]] = []
        self._is_open = True

    async def write(self, data: bytes) -> None:
        """See BlobWriter.write."""
        self._buffer += data
        while len(self._buffer) >= PART_BYTES:
            await self._send(bytes(self._buffer[:PART_BYTES]))
            del self._buffer[:PART_BYTES]

    async def finish(self) -> None:
        """See BlobWriter.finish."""
        if self._buffer or not self._parts:
            await self._send(bytes(self._buffer))
        parts = {"Parts": self._parts}
        await self._store.call(
            "complete_multipart_upload", Key=self._key, UploadId=self._upload_id, MultipartUpload=parts
        )
        self._is_open = False

    async def abort(self) -> None:
        """See BlobWriter.abort."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            await self._store.abort(self._key, self._upload_id)
        except Unavailable:
            _log.exception("blob_not_discarded", key=self._key)

    async def _send(self, data: bytes) -> None:
        number = len(self._parts) + 1
        sent = await self._store.call(
            "upload_part", Key=self._key, UploadId=self._upload_id, PartNumber=number, Body=data
        )
        self._parts.append({"PartNumber": number, "ETag": sent["ETag"]})


async def _in_thread(fn: Callable[[], T]) -> T:
    """Runs a call of boto3 in a thread.

    Raises:
        FileNotFoundError: the object or upload does not exist.
        Unavailable: the server cannot be reached, or refuses.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    try:
        return await asyncio.to_thread(fn)
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in _MISSING:
            raise FileNotFoundError(code) from error
        raise Unavailable(f"The bucket of the contents of files refuses: {code}. Check its settings.") from error
    except (BotoCoreError, OSError) as error:
        raise Unavailable("The bucket of the contents of files cannot be reached. Retry later.") from error
