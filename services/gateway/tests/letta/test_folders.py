"""Uploads to folders under names that clients choose."""

import letta_client
import pytest

from .lab import Lab


def test_a_name_with_directories_is_a_path(lab: Lab) -> None:
    folder = lab.client.folders.create(name="paths")
    files = lab.client.folders.files
    made = files.upload(folder.id, file=("a.txt", b"One."), name="guide/part one/intro.txt")
    assert (made.file_name, made.file_path) == ("guide--part one--intro.txt", "guide/part one/intro.txt")
    assert files.upload(folder.id, file=("b.txt", b"Two."), name="intro.txt").file_name == "intro.txt"
    with pytest.raises(letta_client.ConflictError, match="already exists"):
        files.upload(folder.id, file=("c.txt", b"3"), name="guide/part one/intro.txt", duplicate_handling="error")
