"""Directories as folders: names, ignored files, what is found, and what differs."""

import os
from pathlib import Path

import pytest
from mnemesh.files.v1 import files_pb2
from mnemesh_cli.directories.sync import FileState, FolderFiles, IgnoreRules, Settling, compare, scan
from mnemesh_client.uploads import folder_name_of
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument


def tree(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def found(root: Path, *patterns: str, hidden: bool = False) -> list[str]:
    return sorted(scan(root, IgnoreRules.of_root(patterns, hidden=hidden)).files)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("intro.md", "intro.md"),
        ("guide/intro.md", "guide--intro.md"),
        ("src/app/__init__.py", "src--app--__init__.py"),
        ("cafe\u0301.md", "caf\u00e9.md"),
    ],
)
def test_name_of_a_file_keeps_its_relative_path(path: str, name: str) -> None:
    assert folder_name_of(path) == name


def test_name_of_a_long_path_keeps_its_end_and_stays_unique() -> None:
    names = [folder_name_of("/".join([*["part"] * 80, str(number), "intro.md"])) for number in range(2)]

    assert [len(name) for name in names] == [255, 255]
    assert all(name.endswith("--intro.md") for name in names)
    assert names[0][:12] != names[1][:12]


def test_hidden_and_temporary_files_are_left_out(tmp_path: Path) -> None:
    tree(
        tmp_path,
        *("a.md", "sub/b.md", ".env", ".config/c.md", ".git/config", "sub/.git/config"),
        *("a.md.swp", "a.md~", "#a.md#", "~$a.docx", ".~lock.a.odt#", "x.tmp", "x.part", "x.crdownload", "4913"),
        *("__pycache__/m.pyc", "node_modules/p/index.js", "Thumbs.db"),
    )

    assert found(tmp_path) == ["a.md", "sub/b.md"]
    assert found(tmp_path, hidden=True) == [".config/c.md", ".env", "a.md", "sub/b.md"]


def test_ignore_files_have_the_semantics_of_git(tmp_path: Path) -> None:
    tree(
        tmp_path,
        *("a.log", "keep.log", "build/out.txt", "build/keep.txt", "src/build.txt", "root.txt", "src/root.txt"),
        *("src/a.log", "src/b.log", "src/gen/x.py", "docs/a/b/deep.md", "docs/deep.md"),
    )
    (tmp_path / ".gitignore").write_text(
        "# comment\n*.log\n!keep.log\nbuild/\n!build/keep.txt\n/root.txt\ndocs/**/deep.md\n!\n"
    )
    (tmp_path / "src" / ".gitignore").write_text("!b.log\ngen/\n")

    # A file below an ignored directory cannot be included again, and the invalid rule "!" is left out.
    assert found(tmp_path) == ["keep.log", "src/b.log", "src/build.txt", "src/root.txt"]
    (tmp_path / ".mnemeshignore").write_text("!a.log\nsrc/build.txt\n")
    assert found(tmp_path, "ignored by no file") == ["a.log", "keep.log", "src/a.log", "src/b.log", "src/root.txt"]


def test_rules_of_the_caller_precede_those_of_files(tmp_path: Path) -> None:
    tree(tmp_path, "a.md", "b.txt", "c.txt")
    (tmp_path / ".mnemeshignore").write_text("!c.txt\n")

    assert found(tmp_path, "*.txt") == ["a.md", "c.txt"]
    with pytest.raises(InvalidArgument, match="'!' is not a rule"):
        IgnoreRules.of_root(["!"])


def test_links_do_not_lead_out_of_the_directory(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    tree(root, "a.md", "sub/b.md")
    tree(outside, "secret.md")
    (root / "link.md").symlink_to(outside / "secret.md")
    (root / "inner.md").symlink_to(root / "a.md")
    (root / "circle").symlink_to(root)
    (root / "elsewhere").symlink_to(outside)
    (root / "broken.md").symlink_to(root / "none")
    os.mkfifo(root / "pipe")

    assert found(root) == ["a.md", "inner.md", "sub/b.md"]
    (tmp_path / "entry").symlink_to(root)
    assert found(tmp_path / "entry") == ["a.md", "inner.md", "sub/b.md"]


def test_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="cannot be read"):
        found(tmp_path / "none")


def test_name_that_is_not_utf8_is_reported(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.md")).write_text("x")

    result = scan(tmp_path, IgnoreRules.of_root())

    assert (result.files, list(result.unreadable.values())) == ({}, ["its name is not UTF-8"])


def remote(path: str, content: str, *, name: str | None = None, has_path: bool = True) -> files_pb2.File:
    return files_pb2.File(
        id=f"file-{path}",
        name=name or folder_name_of(path),
        path=path if has_path else None,
        sha256=content,
        size_bytes=len(content),
    )


def changes(
    local: dict[str, str], files: list[files_pb2.File], *, deletes: bool = False, is_certain: bool = True
) -> list[tuple[str, str, str | None, str | None]]:
    missing = {file.path: is_certain for file in files if file.path not in local}
    compared = compare(local, FolderFiles(files), missing, deletes=deletes)
    return [
        (each.action.value, each.path, each.file.id if each.file else None, each.renamed.id if each.renamed else None)
        for each in compared
    ]


def test_new_and_changed_files_are_uploaded_and_others_are_not() -> None:
    files = [remote("same.md", "s"), remote("old.md", "1"), remote("sub/x.md", "x")]

    assert changes({"same.md": "s", "old.md": "2", "sub/x.md": "x", "new.md": "n"}, files) == [
        ("replace", "old.md", "file-old.md", None),
        ("create", "new.md", None, None),
    ]


def test_files_that_are_gone_are_deleted_on_request_only() -> None:
    files = [remote("gone.md", "g"), remote("by-hand.md", "h", has_path=False)]

    assert changes({}, files) == []
    assert changes({}, files, deletes=True) == [("delete", "gone.md", "file-gone.md", None)]


@pytest.mark.parametrize("deletes", [False, True])
def test_renamed_file_loses_its_old_name(deletes: bool) -> None:
    files = [remote("old.md", "content"), remote("target.md", "other")]

    assert changes({"new.md": "content", "target.md": "other"}, files, deletes=deletes) == [
        ("create", "new.md", None, "file-old.md")
    ]
    assert changes({"target.md": "content"}, files, deletes=deletes) == [
        ("replace", "target.md", "file-target.md", "file-old.md")
    ]


def test_content_of_a_file_that_may_come_back_is_not_uploaded_yet() -> None:
    files = [remote("old.md", "content")]

    assert changes({"new.md": "content", "other.md": "x"}, files, deletes=True, is_certain=False) == [
        ("create", "other.md", None, None)
    ]


def test_copy_is_no_rename_and_empty_files_are_not_told_apart() -> None:
    assert changes({"a.md": "x", "b.md": "x"}, [remote("a.md", "x")]) == [("create", "b.md", None, None)]
    assert changes({"new.md": ""}, [remote("gone.md", "")]) == [("create", "new.md", None, None)]


def test_file_without_a_path_counts_if_it_has_the_name() -> None:
    by_hand = remote("sub/a.md", "1", has_path=False)
    other = remote("sub--a.md", "1", name="sub--a.md")

    assert changes({"sub/a.md": "1"}, [by_hand]) == []
    assert changes({"sub/a.md": "2"}, [by_hand]) == [("replace", "sub/a.md", "file-sub/a.md", None)]
    assert changes({"sub/a.md": "1"}, [other]) == [("create", "sub/a.md", None, "file-sub--a.md")]


def test_file_is_settled_when_it_did_not_change_for_a_time() -> None:
    now = 100.0
    settling = Settling(0.5, lambda: now)
    fresh, grown = (FileState(size, 2**62, 2**62, 1) for size in (1, 2))

    assert not settling.is_settled("a", fresh)
    now = 100.4
    assert not settling.is_settled("a", grown), "it is being written"
    now = 100.8
    assert not settling.is_settled("a", grown)
    now = 100.9
    assert settling.is_settled("a", grown)
    assert not settling.is_settled("a", None), "an editor may create it again"
    assert settling.is_settled("old", FileState(1, 0, 0, 1)), "it changed long ago"
