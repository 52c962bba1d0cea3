"""The benchmark of recall and archival runs from end to end on each SQL engine and reports its measurements."""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from mnemesh_testkit.timeouts import scaled

from benchmarks.memory_load.load import RANKS, Corpus

_ROOT = Path(__file__).parents[2]


async def _bench(out: Path, *arguments: str) -> tuple[dict[str, Any], str, str]:
    command = (sys.executable, "-m", "benchmarks.memory_load", "--quick", "--out", str(out), *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=_ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, received = await process.communicate()
    assert process.returncode == 0, received.decode()
    return json.loads(out.read_text()), printed.decode(), received.decode()


@pytest.mark.full
@pytest.mark.timeout(scaled(300))
async def test_quick_run_measures_every_call_on_postgresql(tmp_path: Path) -> None:
    found, printed, _ = await _bench(tmp_path / "tiers.json", "--engine", "postgresql")
    _assert_measured(found, printed, "postgresql")


@pytest.mark.sweep
@pytest.mark.timeout(scaled(300))
async def test_quick_run_on_sqlite_can_reuse_the_filled_stores(
    tmp_path: Path,
) -> None:
    kept = ("--engine", "sqlite", "--keep", str(tmp_path / "kept"))
    first, printed, received = await _bench(tmp_path / "first.json", *kept)
    _assert_measured(first, printed, "sqlite")
    assert "loading sqlite" in received
    again, _, received = await _bench(tmp_path / "again.json", *kept)
    assert "loading" not in received
    assert again["stores"][0]["load"] == first["stores"][0]["load"]
    assert again["stores"][0]["calls"][0]["found"] == 20


def _assert_measured(found: dict[str, Any], printed: str, engine: str) -> None:
    (store,) = found["stores"]
    assert store["engine"] == engine
    assert store["dataset"] == {"messages": 400, "agents": 4, "passages": 80, "archives": 2}
    assert store["load"]["messages_indexed_seconds"] >= store["load"]["messages_seconds"] > 0
    calls = {(one["name"], one["scope"]): one for one in store["calls"]}
    for (name, _), one in calls.items():
        assert 0 < one["p50_ms"] <= one["p95_ms"], name
        assert sum(one["cpu_ms"].values()) > 0, name
        if "rare" not in name and "filtered" not in name:
            assert one["found"] > 0, name
    assert calls["GetContext", "agent"]["found"] == 20
    assert calls["GetContext, not modified", "agent"]["found"] == 1
    assert calls["SearchMessages hybrid, common words", "agent"]["found"] == 10
    assert calls["ListMessages after the middle", "agent"]["found"] == 50
    assert calls["CommitStep", "agent"]["found"] == 2
    assert calls["InsertPassages of 100", "archive"]["found"] == 100
    processes = {"recall", "archival"} | ({"postgresql"} if engine == "postgresql" else set())
    assert set(store["memory_mb"]["at end"]) == processes
    assert all(0 < mb["own"] < mb["resident"] for mb in store["memory_mb"]["at end"].values())
    assert all(mb > 0 for mb in store["disk_mb"].values())
    commit = calls["CommitStep", "agent"]
    assert re.search(rf"CommitStep \| agent \| 5 \| {commit['p50_ms']:.1f} / {commit['p95_ms']:.1f}", printed)


def test_word_frequencies_match_their_kind() -> None:
    corpus = Corpus()
    texts = [set(re.findall(r"\w+", corpus.text(1, position).lower())) for position in range(2_000)]

    def holders(kind: str) -> float:
        words = corpus.of_kind(kind)
        return sum(word in text for text in texts for word in words) / len(words) / len(texts)

    assert 0 < holders("rare") < 0.001
    assert 0.002 < holders("middling") < 0.03
    assert 0.1 < holders("common") < 0.5
    assert {kind for kind in RANKS if len(set(corpus.of_kind(kind))) == len(corpus.of_kind(kind))} == set(RANKS)
    assert corpus.text(1, 2) == Corpus().text(1, 2) != corpus.text(1, 3)
