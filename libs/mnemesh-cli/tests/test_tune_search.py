"""`mnemesh tune-search` reports the gain of fitted constants, and writes a file only if there is one."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mnemesh_cli.commands import search_tuning
from mnemesh_cli.main import main
from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.ranking.constants import RankingConstants, load_constants
from mnemesh_retrieval.tuning import fitting

COUNT = 40
SECRET = "sk-very-secret"


class Knowing:
    """Knows which turn answers which question: both have the same number. `weight` is what it begins with."""

    handle = "acme/knowing"
    dimension = COUNT
    similarity_weight = least_similarity = 0.0

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [np.eye(COUNT, dtype=np.float32)[int(re.findall(r"\d+", text)[-1])] for text in texts]

    async def close(self) -> None: ...


class Ignorant(Knowing):
    handle = "acme/ignorant"

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [np.ones(COUNT, dtype=np.float32) for _ in texts]


@pytest.fixture(autouse=True)
def few_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "COORDINATES", {"speaker_factor": (1.0, 1.1)})
    for name in ("EMBEDDER", "EMBEDDER_BASE_URL", "EMBEDDER_DIMENSION", "RANKING_FILE"):
        monkeypatch.delenv(f"MNEMESH_{name}", raising=False)


@pytest.fixture
def dialogues(tmp_path: Path) -> Path:
    """Questions that share one common word with every turn."""
    sessions = [
        {
            "started_at": f"2024-01-0{day + 1}T08:00:00Z",
            "utterances": [
                {"id": number, "speaker": "Ann", "text": f"The boat alpha{number}."}
                for number in range(day * 10, day * 10 + 10)
            ],
        }
        for day in range(COUNT // 10)
    ]
    questions = [{"text": f"Which boat has beta{number}?", "evidence": [number]} for number in range(COUNT)]
    path = tmp_path / "talks.json"
    path.write_text(json.dumps({"dialogues": [{"sessions": sessions, "questions": questions}]}))
    return path


def run(monkeypatch: pytest.MonkeyPatch, embedder: Any, *arguments: str) -> int:
    monkeypatch.setattr(search_tuning, "make_embedder", lambda handle, settings: embedder)
    return command(monkeypatch, "--embedder", embedder.handle, *arguments)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["mnemesh", "tune-search", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_gain_is_reported_and_written_for_the_embedder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dialogues: Path, tmp_path: Path
) -> None:
    start, out = tmp_path / "start.json", tmp_path / "ranking.json"
    start.write_text(RankingConstants(before_share=0.45, similarity_weights={"acme/other": 0.5}).to_json())
    assert run(monkeypatch, Knowing(), "--dialogues", str(dialogues), "--start", str(start), "--out", str(out)) == 0
    printed = capsys.readouterr().out
    assert "Gain: +0." in printed
    assert re.search(r"similarity_weight +0 -> 0\.\d+", printed)
    assert f"Written to {out}" in printed
    written = load_constants(out)
    assert written.similarity_weights["acme/knowing"] > 0
    assert (written.similarity_weights["acme/other"], written.before_share) == (0.5, 0.45), "the rest stays"


def test_no_gain_is_said_plainly_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dialogues: Path, tmp_path: Path
) -> None:
    out = tmp_path / "ranking.json"
    assert run(monkeypatch, Ignorant(), "--dialogues", str(dialogues), "--out", str(out)) == 0
    assert "No gain: no value is better. Keep the constants in use. No file is written." in capsys.readouterr().out
    assert not out.exists()


def test_the_result_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dialogues: Path
) -> None:
    assert run(monkeypatch, Knowing(), "--dialogues", str(dialogues), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["questions"], found["is_gain"]) == (COUNT, True)
    assert found["scores"]["MRR"]["gain"]["low"] > 0
    assert found["changes"]["similarity_weight"]["before"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dialogues", "/nowhere.json"), "/nowhere.json cannot be read"),
        (("--dialogues", "{talks}", "--start", "/nowhere.json"), "ranking file /nowhere.json cannot be read"),
        (("--dialogues", "{talks}", "--embedder", "acme/m"), "needs the base URL"),
        (("--dialogues", "{few}"), "There are 1 questions with evidence. At least 20 are needed."),
    ],
)
def test_wrong_input_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    dialogues: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    data = json.loads(dialogues.read_text())
    data["dialogues"][0]["questions"] = data["dialogues"][0]["questions"][:1]
    (tmp_path / "few.json").write_text(json.dumps(data))
    monkeypatch.setenv("MNEMESH_EMBEDDER_API_KEY", SECRET)
    places = {"talks": str(dialogues), "few": str(tmp_path / "few.json")}
    assert command(monkeypatch, *(argument.format(**places) for argument in arguments)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error
    assert SECRET not in error


def test_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dialogues: Path
) -> None:
    monkeypatch.delattr("mnemesh_cli.commands.search_tuning")
    monkeypatch.setitem(sys.modules, "mnemesh_cli.commands.search_tuning", None)
    assert command(monkeypatch, "--dialogues", str(dialogues)) == 2
    assert "-m pip install --find-links dist mnemesh-retrieval" in capsys.readouterr().err
