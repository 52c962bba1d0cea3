"""Evidence in a dialogue is found at least as well as by full-text search with context."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks import recall_quality, retrieval_quality
from benchmarks.dialogues import chosen

WRITTEN = Path(__file__).parents[2] / "benchmarks" / "data" / "written.json"


def scored(
    run: Callable[[], None], monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: str
) -> list[dict[str, Any]]:
    given = ["quality", "--dialogues", str(WRITTEN), "--engines", "sqlite", "--modes", "hybrid", "--out", str(out)]
    monkeypatch.setattr("sys.argv", [*given, *arguments])
    run()
    rows: list[dict[str, Any]] = json.loads(out.read_text())
    return rows


def require_better(rows: list[dict[str, Any]], variants: int) -> None:
    reference = {row["set"]: row["found_at"] for row in rows if row["mode"] == "context"}
    ours = {row["set"]: row["found_at"] for row in rows if row["mode"] == "hybrid"}
    assert len(ours) == len(reference) == variants
    for variant, found in ours.items():
        assert all(found[depth] >= share for depth, share in reference[variant].items()), (variant, found, reference)


def test_messages_with_the_evidence_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    variants = ("--variants", "nameless,timeless")
    require_better(scored(recall_quality.main, monkeypatch, tmp_path / "out.json", *variants), 2)


@pytest.mark.full
def test_passages_with_the_evidence_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    variants = ("--variants", "nameless", "--notes", "0", "--embedders", "mnemesh/wordllama-256")
    require_better(scored(retrieval_quality.main, monkeypatch, tmp_path / "out.json", *variants), 1)


def test_dialogues_are_generated_or_read_from_a_file() -> None:
    assert len(chosen("1", 7)) == 1
    (own,) = chosen(str(WRITTEN), 7)
    assert own.speakers == ("Nora", "Tomas")
    assert own.turns[0].said_at == datetime(2024, 1, 14, 18, 20, 30, tzinfo=UTC)
    assert {turn.session for turn in own.turns} == set(range(8))
