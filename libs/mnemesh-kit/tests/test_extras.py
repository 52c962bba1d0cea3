"""The commands that errors about missing packages name."""

import shlex
import subprocess
import sys
from importlib.machinery import PathFinder

import pytest
from mnemesh_kit.extras import install_hint


def command(hint: str) -> list[str]:
    """Returns the words of the command in a hint."""
    return shlex.split(hint.removeprefix("Install it: "))


def test_an_extra_is_installed_by_its_packages_into_this_environment() -> None:
    words = command(install_hint("mnemesh-files", "s3"))
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    assert [word.partition(">")[0] for word in words[4:]] == ["boto3", "botocore"]


def test_an_extra_of_another_distribution_of_ours_stands_for_its_packages() -> None:
    assert command(install_hint("mnemesh-blocks", "otel")) == command(install_hint("mnemesh-kit", "otel"))
    assert "--find-links" not in command(install_hint("mnemesh-recall", "qdrant"))


def test_an_environment_without_pip_is_changed_by_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    find = PathFinder.find_spec
    monkeypatch.setattr(PathFinder, "find_spec", lambda name, *rest: None if name == "pip" else find(name, *rest))
    assert command(install_hint("mnemesh-tools", "node"))[:5] == ["uv", "pip", "install", "--python", sys.executable]


def test_the_command_is_one_that_pip_understands() -> None:
    words = command(install_hint("mnemesh-cli", "letta"))
    assert subprocess.run([*words, "--dry-run", "--no-index", "--quiet"], check=False).returncode == 0
