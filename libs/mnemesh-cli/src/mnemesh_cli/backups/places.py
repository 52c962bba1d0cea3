"""The storage of backups: a directory, or a bucket of an S3-compatible server.

Both raise BackupError, with one line for the operator, if a file cannot be read or written.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, cast
from urllib.parse import urlsplit

from mnemesh_kit.config import StartupError
from mnemesh_kit.extras import install_hint

if TYPE_CHECKING:
    from botocore.client import BaseClient

_UNFINISHED: Final = "unfinished"
_LOCK: Final = "backup.lock"
_KEYS_PER_DELETION: Final = 1000


class BackupError(StartupError):
    """A backup cannot be made, is damaged, or does not fit. The message is one line for the operator."""


class Place(Protocol):
    """Files under names such as `backups/<id>/manifest.json`. A file is there as a whole or not at all."""

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yields the path of a new local file, which is removed at the end unless it was put."""

    def put(self, draft: Path, name: str) -> None:
        """Makes a draft the durable file of a name. Replaces an earlier one."""

    def open(self, name: str) -> BinaryIO:
        """Opens a file for reading, which the caller closes. Raises BackupError if there is none."""

    def names(self, prefix: str) -> dict[str, int]:
        """Returns the names of the files that begin with a prefix, and their sizes in bytes."""

    def delete(self, names: Iterable[str]) -> None:
        """Deletes files. It ignores files that do not exist."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other backups away. Raises BackupError if one is being made. A bucket has no lock."""


def open_place(where: str, *, create: bool = False) -> Place:
    """Returns the place of a directory or of a URL `s3://bucket/prefix`.

    Raises:
        BackupError: it does not exist, and is not to be created; or boto3 is not installed.
    """
    if where.startswith("s3://"):
        return BucketPlace(where)
    place = DirectoryPlace(Path(where).expanduser().absolute())
    place.require(create=create)
    return place


class DirectoryPlace:
    """See Place."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def require(self, *, create: bool) -> None:
        """Creates the directory. Raises BackupError if it does not exist and is not to be created."""
        with self._errors():
            if create:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif not self._directory.is_dir():
                raise BackupError(f"The directory {self._directory} does not exist.")

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """See Place.draft."""
        with self._errors():
            (self._directory / _UNFINISHED).mkdir(mode=0o700, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._directory / _UNFINISHED)
            os.close(descriptor)
            try:
                yield Path(name)
            finally:
                Path(name).unlink(missing_ok=True)

    def put(self, draft: Path, name: str) -> None:
        """See Place.put."""
        target = self._directory / name
        missing = [folder for folder in target.parents if not folder.exists()]
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _flush(draft)
        draft.rename(target)
        for folder in (target.parent, *(folder.parent for folder in missing)):
            _flush(folder)

    def open(self, name: str) -> BinaryIO:
        """See Place.open."""
        try:
            return (self._directory / name).open("rb")
        except OSError as error:
            raise BackupError(f"{self._directory / name} cannot be read: {error.strerror}.") from error

    def names(self, prefix: str) -> dict[str, int]:
        """See Place.names."""
        root = self._directory / prefix
        with self._errors():
            found = (Path(folder, file) for folder, _, files in os.walk(root, onerror=_raise) for file in files)
            return {str(path.relative_to(self._directory)): path.stat().st_size for path in found}

    def delete(self, names: Iterable[str]) -> None:
        """See Place.delete. Folders that become empty are deleted, too."""
        with self._errors():
            for name in names:
                path = self._directory / name
                path.unlink(missing_ok=True)
                if path.parent.is_dir() and not any(path.parent.iterdir()):
                    path.parent.rmdir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """See Place.locked. What an interrupted backup left in drafts is removed."""
        with self._errors():
            lock = (self._directory / _LOCK).open("w")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BackupError(f"Another backup into {self._directory} is running.") from None
            self.delete(self.names(_UNFINISHED))
            yield

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BackupError(f"The directory {self._directory} cannot be used: {error.strerror}.") from error


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class BucketPlace:
    """See Place. The AWS SDK reads credentials, region and endpoint from its own variables: AWS_ENDPOINT_URL_S3."""

    def __init__(self, url: str) -> None:
        try:
            import boto3  # noqa: PLC0415  (20 MB, for those who use it)
        except ImportError as error:
            raise BackupError(f"boto3 is not installed. {install_hint('mnemesh-cli', 's3')}") from error
        parts = urlsplit(url)
        self._bucket, self._url = parts.netloc, url
        self._prefix = f"{parts.path.strip('/')}/".lstrip("/")
        self._client: BaseClient = boto3.client("s3")

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """See Place.draft."""
        with tempfile.TemporaryDirectory(prefix="mnemesh-backup-") as directory:
            path = Path(directory) / "draft"
            path.touch(mode=0o600)
            yield path

    def put(self, draft: Path, name: str) -> None:
        """See Place.put."""
        with self._errors(name):
            self._client.upload_file(str(draft), self._bucket, self._prefix + name)

    def open(self, name: str) -> BinaryIO:
        """See Place.open."""
        file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115
        with self._errors(name):
            self._client.download_fileobj(self._bucket, self._prefix + name, file)  # which retries, also in the middle
        file.seek(0)
        return file

    def names(self, prefix: str) -> dict[str, int]:
        """See Place.names."""
        with self._errors():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            found = (item for page in pages for item in page.get("Contents", ()))
            return {item["Key"].removeprefix(self._prefix): item["Size"] for item in found}

    def delete(self, names: Iterable[str]) -> None:
        """See Place.delete."""
        keys = [{"Key": self._prefix + name} for name in names]
        with self._errors():
            for start in range(0, len(keys), _KEYS_PER_DELETION):
                some = {"Objects": keys[start : start + _KEYS_PER_DELETION], "Quiet": True}
                refused = self._client.delete_objects(Bucket=self._bucket, Delete=some).get("Errors", ())
                for item in refused:
                    raise BackupError(f"{self._url.rstrip('/')}: {item['Key']} was not deleted: {item['Message']}")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """See Place.locked."""
        yield

    @contextmanager
    def _errors(self, name: str = "") -> Iterator[None]:
        from boto3.exceptions import Boto3Error  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        try:
            yield
        except (Boto3Error, BotoCoreError, ClientError) as error:
            raise BackupError(f"{self._url.rstrip('/')}/{name}: {error}") from error


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
