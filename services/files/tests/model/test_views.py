"""Views of windows: exact texts of the three styles, ranges, pages and truncation."""

import pytest
from mnemesh_files.model.agent_files import (
    DEFAULT_LIMITS,
    TRUNCATED,
    ViewStyle,
    Window,
    rendered,
    shown_characters,
    window_of,
)
from mnemesh_types.files import FileLimits

CODE = ["def one():", "    return 1  ", "", "x = one()"]
PROSE = ["# Title", "", 'It rains. "Really?" Yes!  And 3.5 litres, e.g. here.', "    indented"]


def text(lines: list[str], style: ViewStyle, window: Window = Window(), limit: int = 10_000, **pages: object) -> str:  # noqa: B008
    shown = lines[window.first - 1 : window.last(len(lines))]
    return rendered(shown, window, len(lines), style, limit, **pages).text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lines", "style", "expected"),
    [
        (CODE, ViewStyle.CODE, "1: def one():\n2:     return 1\n3:\n4: x = one()"),
        (["  a , b ", "", "1,2"], ViewStyle.LINES, "1: a , b\n2:\n3: 1,2"),
        (
            PROSE,
            ViewStyle.SENTENCES,
            '1: # Title\n2:\n3: It rains.\n3: "Really?"\n3: Yes!\n3: And 3.5 litres, e.g. here.\n4:     indented',
        ),
    ],
)
def test_styles_keep_every_line_under_its_number(lines: list[str], style: ViewStyle, expected: str) -> None:
    assert text(lines, style) == f"[Viewing file start (out of {len(lines)} lines)]\n{expected}"


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (None, None, "[Viewing file start (out of 4 lines)]\n1: def"),
        (1, 2, "[Viewing lines 2 to 3 (out of 4 lines)]\n2:     return 1\n3:"),
        (3, 9, "[Viewing lines 4 to 4 (out of 4 lines)]\n4: x = one()"),
        (2, None, "[Viewing lines 3 to end (out of 4 lines)]\n3:\n4: x = one()"),
        (None, 1, "[Viewing lines 1 to 1 (out of 4 lines)]\n1: def one():"),
    ],
)
def test_headers_name_the_range(offset: int | None, length: int | None, expected: str) -> None:
    assert text(CODE, ViewStyle.CODE, window_of(offset, length, "file")).startswith(expected)


def test_headers_name_the_pages() -> None:
    assert text(CODE, ViewStyle.CODE, page_starts=(1, 4)).startswith(
        "[Viewing file start (out of 4 lines), pages 1 to 2]"
    )
    assert text(CODE, ViewStyle.CODE, Window(4), page_starts=(1, 4)).startswith(
        "[Viewing lines 4 to end (out of 4 lines), page 2]"
    )


def test_an_empty_file_has_a_header() -> None:
    assert text([], ViewStyle.LINES) == "[Viewing file start (out of 0 lines)]"


@pytest.mark.parametrize("limit", range(1, 400, 7))
def test_no_view_is_longer_than_its_limit(limit: int) -> None:
    lines = ["x" * 30] * 5
    shown = rendered(lines, Window(), 5, ViewStyle.CODE, limit)
    assert len(shown.text) <= limit
    assert shown.truncated == (len(text(lines, ViewStyle.CODE)) > limit)
    if shown.truncated and limit > 200:
        assert shown.text.endswith(f"x\n{TRUNCATED}")


def test_all_open_files_fit_into_a_response() -> None:
    assert shown_characters(DEFAULT_LIMITS) == 50_000
    assert shown_characters(FileLimits(1_000, 1_000_000)) == 2_000
