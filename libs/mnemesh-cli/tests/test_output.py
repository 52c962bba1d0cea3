"""Lines of the command line: whole in files and pipes, wrapped between words in a terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest
from mnemesh_cli.display.terminal import notice, print_error, print_labelled
from rich.text import Text

WORDS = "one two three four five six seven eight nine ten eleven twelve"


class Screen(io.StringIO):
    """A stream that is a terminal of 40 columns, or none."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def screen(request: pytest.FixtureRequest) -> Screen:
    return Screen(is_terminal=request.param)


@pytest.fixture
def shown_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Screen], None]:
    """Returns a function that replaces stdout and stderr, which pytest replaces before each phase of a test."""
    for name, value in (("COLUMNS", "40"), ("LINES", "20"), ("TERM", "dumb"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)

    def replace(screen: Screen) -> None:
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "stderr", screen)

    return replace


@pytest.mark.parametrize("show", [notice, print_error])
def test_messages_of_the_program(
    screen: Screen, shown_on: Callable[[Screen], None], show: Callable[[str], None]
) -> None:
    shown_on(screen)
    show(WORDS)
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert " ".join(lines) == f"mnemesh: {WORDS}"
    assert (len(lines) == 1) == (not screen.isatty())
    assert all(len(line) <= 40 for line in lines) == screen.isatty()


def test_text_after_a_label(screen: Screen, shown_on: Callable[[Screen], None]) -> None:
    shown_on(screen)
    print_labelled(Text("10:00 user"), Text(WORDS))
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    if screen.isatty():
        assert lines == [
            "10:00 user one two three four five six",
            "           seven eight nine ten eleven",
            "           twelve",
        ]
    else:
        assert lines == [f"10:00 user {WORDS}"]
