"""The differences between a directory and a folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from mnemesh.files.v1 import files_pb2
from mnemesh_client.file_names import folder_name_of


class Action(StrEnum):
    """The change of a file of a folder."""

    CREATE = "create"
    REPLACE = "replace"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: what to do so that it is gone."""

    action: Action
    path: str
    file: files_pb2.File | None = None
    """The file of the folder that is replaced or deleted."""
    renamed: files_pb2.File | None = None
    """The file of the folder with the old name of a renamed file. It is deleted after the upload."""


class FolderFiles:
    """The files of a folder, found by the relative path with which they were uploaded, or else by name."""

    def __init__(self, files: Iterable[files_pb2.File]) -> None:
        self._by_path: dict[str, files_pb2.File] = {}
        self._by_name: dict[str, files_pb2.File] = {}
        for file in files:
            self.add(file)

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, file: files_pb2.File) -> None:
        """Adds a file, or replaces the one with its name."""
        self._by_name[file.name] = file
        if file.path:
            self._by_path[file.path] = file

    def remove(self, file: files_pb2.File) -> None:
        """Removes a file."""
        self._by_name.pop(file.name, None)
        if self._by_path.get(file.path, file).id == file.id:
            self._by_path.pop(file.path, None)

    def of(self, path: str) -> files_pb2.File | None:
        """Returns the file of a relative path. A file without a path counts if it has the name of this one."""
        known = self._by_path.get(path)
        if known is not None:
            return known
        named = self._by_name.get(folder_name_of(path))
        return named if named is not None and not named.path else None

    def named(self, name: str) -> files_pb2.File | None:
        """Returns the file with a name."""
        return self._by_name.get(name)

    def from_directories(self) -> Mapping[str, files_pb2.File]:
        """Returns the files that were uploaded with a relative path, by that path."""
        return {path: file for path, file in self._by_path.items() if not path.startswith("/")}


def compare(
    hashes: Mapping[str, str], folder: FolderFiles, missing: Mapping[str, bool], *, deletes: bool
) -> list[Change]:
    """Returns the changes that make a folder equal to a directory.

    A file that is missing and has the content of a new one was renamed. Its old name is deleted in any case. Files that
    were uploaded without a relative path are not deleted.

    Args:
        hashes: relative path to SHA-256 of the files of the directory.
        folder: the files of the folder.
        missing: relative path of each file of the folder that the directory does not have, to whether it is certainly
            gone. As long as it is not, it is not deleted, and files with its content are not uploaded.
        deletes: whether files that are gone are deleted.
    """
    absent = {path: file for path, file in folder.from_directories().items() if path in missing}
    moved = {file.sha256: path for path, file in absent.items() if file.size_bytes > 0}
    changes = []
    for path, sha256 in hashes.items():
        known = folder.of(path)
        if known is not None and known.sha256 == sha256:
            continue
        old = moved.get(sha256)
        if old is not None and not missing[old]:
            continue
        renamed = absent.pop(moved.pop(sha256)) if old is not None else None
        action = Action.CREATE if known is None else Action.REPLACE
        changes.append(Change(action, path, known, renamed))
    if deletes:
        changes += [Change(Action.DELETE, path, file) for path, file in absent.items() if missing[path]]
    return changes
