"""Tables and a chart of the scores."""

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


def as_text(report: Mapping[str, Any]) -> str:
    """Returns the tables of a report. A score is followed by its 95 % confidence interval."""
    dataset = report["dataset"]
    counts = f"{dataset['dialogues']} dialogues, {dataset['turns']:,} turns, {dataset['questions']:,} questions"
    parts = [f"{dataset['file']}: {counts}"]
    if report["retrieval"]:
        parts += ["", "Retrieval: share of questions with some (any) or all evidence among the first hits", ""]
        parts += _retrieval(report["retrieval"])
    if report.get("answers"):
        parts += ["", _answers_title(report["answers"]), ""]
        parts += _answers(report["answers"])
    return "\n".join(parts)


def _retrieval(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    depths = list(rows[0]["scores"]["any_at"])
    names = ["tier", "engine", "configuration", "category", "n"]
    shares = [f"any@{depth}" for depth in depths] + [f"all@{depths[-1]}", "MRR", "p50 ms", "reranked"]
    lines = []
    for row in rows:
        head = [row["tier"], row["engine"], row["configuration"]]
        timing = [f"{row['p50_ms']:.1f}", f"{row['reranked']:.0%}"]
        lines.append([*head, "all", *_scores(row["scores"], depths), *timing])
        if len(row["categories"]) > 1:
            groups = row["categories"].items()
            lines += [["", "", "", name, *_scores(found, depths), "", ""] for name, found in groups]
    return _table([*names, *shares], lines, words=4)


def _scores(found: Mapping[str, Any], depths: Sequence[str]) -> list[str]:
    shares = [found["any_at"][depth] for depth in depths] + [found["all_at"][depths[-1]]]
    return [str(shares[0]["count"]), *(estimate(each) for each in [*shares, found["reciprocal_rank"]])]


def _answers_title(answers: Mapping[str, Any]) -> str:
    judge = f", judged by {answers['judge']}" if answers["judge"] else ""
    return f"Answers of {answers['model']} that searches in {answers['tier']}{judge}"


def _answers(answers: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, each in answers["categories"].items():
        found = [estimate(each[key]) if each[key] else "" for key in ("f1", "judged")]
        lines.append([name, str(each["count"]), str(each["failed"]), *found])
    return _table(["category", "n", "failed", "F1", "judged correct"], lines, words=1)


def estimate(found: Mapping[str, Any]) -> str:
    """Returns a value with its interval, such as `.512 [.467–.557]`."""
    value, low, high = (f"{found[key]:.3f}".removeprefix("0") for key in ("value", "low", "high"))
    return f"{value} [{low}–{high}]"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], *, words: int) -> list[str]:
    widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in [head, *lines]
    ]
