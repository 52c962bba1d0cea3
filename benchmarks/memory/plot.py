"""The plot of the report, as SVG: a bar with its confidence interval for each configuration and depth."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

_COLOURS: Final = ("#9db7d5", "#5b8db8", "#2f6690", "#16425b", "#0b2a3c", "#000000")
_BAR: Final = 16
_GAP: Final = 34
_HEIGHT: Final = 220
_LEFT: Final = 46
_TOP: Final = 40
_BOTTOM: Final = 74


def as_svg(report: Mapping[str, Any]) -> str:
    """Returns a chart of the shares of questions with evidence among the first hits. Without rows it has no bars."""
    rows: Sequence[Mapping[str, Any]] = report["retrieval"]
    depths = list(rows[0]["scores"]["any_at"]) if rows else []
    group = len(depths) * _BAR + _GAP
    width = max(360, _LEFT + len(rows) * max(group, 110) + 20)
    parts = [*_axes(width, report["dataset"]["file"]), *_legend(depths)]
    for number, row in enumerate(rows):
        left = _LEFT + 10 + number * max(group, 110)
        label = (row["tier"], row["engine"], row["configuration"])
        for line, word in enumerate(label):
            parts.append(_text(left, _TOP + _HEIGHT + 16 + 14 * line, word))
        for place, depth in enumerate(depths):
            parts += _bar(left + place * _BAR, row["scores"]["any_at"][depth], _COLOURS[place % len(_COLOURS)])
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_TOP + _HEIGHT + _BOTTOM}" '
    head += 'font-family="sans-serif" font-size="11">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


def _axes(width: int, title: str) -> Iterator[str]:
    yield _text(_LEFT, 16, f"{title}: questions with evidence among the first hits, 95 % intervals")
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10)
        yield f'<line x1="{_LEFT}" x2="{width - 10}" y1="{y}" y2="{y}" stroke="#dddddd"/>'
        yield _text(_LEFT - 26, y + 4, f"{tenth / 10:.1f}")


def _legend(depths: Sequence[str]) -> Iterator[str]:
    for place, depth in enumerate(depths):
        x = _LEFT + place * 70
        yield f'<rect x="{x}" y="23" width="10" height="10" fill="{_COLOURS[place % len(_COLOURS)]}"/>'
        yield _text(x + 14, 32, f"any@{depth}")


def _bar(x: int, found: Mapping[str, float], colour: str) -> Iterator[str]:
    top, middle = _y(found["value"]), x + (_BAR - 3) / 2
    yield f'<rect x="{x}" y="{top}" width="{_BAR - 3}" height="{_y(0) - top:.1f}" fill="{colour}"/>'
    ends = f'y1="{_y(found["low"])}" y2="{_y(found["high"])}"'
    yield f'<line x1="{middle}" x2="{middle}" {ends} stroke="#c0392b" stroke-width="1.5"/>'


def _y(share: float) -> float:
    return round(_TOP + _HEIGHT * (1 - share), 1)


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(text)}</text>'
