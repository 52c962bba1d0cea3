"""Every command that the pages name exists: its nouns, verbs and options, and what it installs."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from mnemesh_cli.main import app

from .test_pages import PAGES, ROOT

SOURCES = sorted(path for pattern in ("libs/*/src", "services/*/src", "examples") for path in ROOT.glob(pattern))
INSTALLS = re.compile(r"(?:pip3? install|uv add|uv pip install|uv tool install|pipx install|uvx)\s[^`\n]*")
TOKEN = re.compile(r"(?P<end>[|&;#>…]|\.\.\.)")


def lines_that_install(text: str) -> Iterator[str]:
    """Yields the commands of a text that install something of ours by its name."""
    for command in INSTALLS.findall(text):
        words = command.split()
        if any(re.match(r"[\"']?mnemesh\b", word) for word in words):
            yield command


def test_installation_commands_need_no_release() -> None:
    """No package of ours is in a public index: its wheels come from `make dist`, or its source from the checkout."""
    files = [
        *PAGES,
        *(path for folder in SOURCES for path in folder.rglob("*") if path.suffix in {".py", ".md", ".txt"}),
    ]
    wrong = {
        f"{path.relative_to(ROOT)}: {command}"
        for path in files
        for command in lines_that_install(path.read_text())
        if "--find-links dist " not in f"{command} "
    }
    assert wrong == set()


@pytest.mark.parametrize(
    "text", ["pip install 'mnemesh-cli[letta]'", "uv add mnemesh-client", "uvx mnemesh up", "pip install -U mnemesh"]
)
def test_an_installation_from_an_index_is_recognized(text: str) -> None:
    assert list(lines_that_install(f"Run `{text}`.")) == [text]


def commands_of(page: Path) -> Iterator[str]:
    """Yields the command lines of `mnemesh` in the code of a page."""
    text = page.read_text()
    blocks = re.findall(r"^```(?:bash|sh|console)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    code = "\n".join(blocks) + "\n" + "\n".join(re.findall(r"^    (.*)", text, re.MULTILINE))
    joined = code.replace("\\\n", " ")
    yield from (line.strip().removeprefix("$ ") for line in joined.splitlines())
    yield from (" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text))


def words_of(command: str) -> list[str] | None:
    """Returns the words after `mnemesh`, up to what belongs to the shell; None if it is another command."""
    match = re.match(r"(?:\w+=\S+ )*(?:\.venv/bin/)?mnemesh(?:$| (.*))", command)
    if match is None:
        return None
    try:
        words = shlex.split(match[1] or "", comments=True)
    except ValueError:
        return None
    ends = [at for at, word in enumerate(words) if TOKEN.match(word)]
    return words[: ends[0]] if ends else words


def problem_of(words: list[str]) -> str | None:
    """Returns what is wrong with a line: a command or an option that does not exist."""
    root: Any = typer.main.get_command(app)
    command, path = root, "mnemesh"
    words = list(words)
    known = {name for each in root.params for name in each.opts}
    while hasattr(command, "commands") and words:
        word = words.pop(0)
        if word.startswith("-"):
            if word not in known | {"--help", "-h"}:
                return f"{path} {word}"
            if word in ("--target", "--profile") and words:
                words.pop(0)
            continue
        if not re.fullmatch(r"[a-z][a-z-]*", word):
            return None  # a placeholder, such as NOUN
        found = command.get_command(typer.Context(command), word)
        if found is None:
            return f"{path} {word}"
        command, path = found, f"{path} {word}"
    if getattr(command, "commands", None):
        return None
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
    wrong = [word for word in words if re.match(r"--[a-z]", word) and word.partition("=")[0] not in options]
    return f"{path} {wrong[0]}" if wrong else None


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_commands_of_the_pages_exist(page: Path) -> None:
    lines = [(command, words_of(command)) for command in commands_of(page)]
    wrong = {command: problem_of(words) for command, words in lines if words is not None}
    assert {command: problem for command, problem in wrong.items() if problem} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_rows_are_inside_tables(page: Path) -> None:
    """A row that does not follow a header and its line of dashes is shown as text."""
    inside, wrong = False, []
    lines = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL).splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        is_row = line.startswith("|")
        if is_row and not inside and not re.fullmatch(r"\|(?:\s*:?-+:?\s*\|)+", following):
            wrong.append(line)
        inside = is_row
    assert wrong == []
