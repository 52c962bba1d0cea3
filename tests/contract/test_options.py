"""Options of the proto files for clients in other languages."""

from pathlib import Path

import pytest

PROTO = Path(__file__).resolve().parents[2] / "proto"
FILES = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))


@pytest.mark.parametrize("name", FILES)
def test_packages_in_go_and_java_follow_the_path(name: str) -> None:
    """The Go module is mnemesh.local; a Java package equals the proto package, with a file for each class."""
    *folders, _ = name.split("/")
    lines = (PROTO / name).read_text().splitlines()
    assert f'option go_package = "mnemesh.local/{"/".join(folders)};{"".join(folders[-2:])}";' in lines
    assert "option java_multiple_files = true;" in lines
    assert f'option java_package = "{".".join(folders)}";' in lines
