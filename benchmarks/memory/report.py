"""The tables of the report."""

from collections.abc import Mapping, Sequence
from typing import Any


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
