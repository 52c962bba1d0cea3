"""The benchmark runs from end to end and reports its measurements. This test does not check speed."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from mnemesh_testkit.timeouts import scaled

_ROOT = Path(__file__).parents[2]
_SERVICES = {"orchestrator", "blocks", "recall", "archival", "tools", "gateway", "files"}


@pytest.mark.timeout(scaled(300))
@pytest.mark.full
async def test_quick_benchmark_measures_every_kind_of_turn(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    command = (sys.executable, "-m", "benchmarks", "--quick", "--out", str(out))
    process = await asyncio.create_subprocess_exec(
        *command, cwd=_ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, problems = await process.communicate()
    assert process.returncode == 0, problems.decode()

    found = json.loads(out.read_text())
    assert found["start_seconds"] > 0
    assert found["machine"]["cpus"] >= 1
    assert set(found["memory_mb"]["resident_at_end"]) == _SERVICES | {"fake model", "load"}
    assert {(one["script"], one["policy"], one["agents"]) for one in found["scenarios"]} == {
        ("one-step", "v3", 1),
        ("five-tools", "v2", 1),
        ("one-step", "v3", 2),
    }
    for one in found["scenarios"]:
        assert 0 < one["first_event_ms"]["p50"] < one["first_model_event_ms"]["p50"] <= one["turn_ms"]["p50"]
        assert one["turns_per_second"] > 0
        assert one["cpu_ms_per_turn"]["orchestrator"] > 0
    assert f"{found['scenarios'][0]['turn_ms']['p50']:.1f}" in printed.decode()

    calls = found["per_turn"]
    commits = 'recall mnemesh_rpcs_total{code="OK",method="/mnemesh.recall.v1.MessageService/CommitStep"}'
    assert calls["one-step"][commits] == 1
    assert calls["five-tools"][commits] == 6


@pytest.mark.timeout(scaled(300))
@pytest.mark.full
async def test_quick_benchmark_of_files_measures_every_part(tmp_path: Path) -> None:
    out = tmp_path / "bench-files.json"
    command = (sys.executable, "-m", "benchmarks.files", "--quick", "--out", str(out))
    process = await asyncio.create_subprocess_exec(
        *command, cwd=_ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, problems = await process.communicate()
    assert process.returncode == 0, problems.decode()

    found = json.loads(out.read_text())
    assert set(found) == {"machine", "views", "grep", "ingestion", "search"}
    assert (found["ingestion"]["files"], found["ingestion"]["failed"]) == (20, 0)
    assert found["ingestion"]["passages"] > 20
    matches = {row["pattern"]: row["matches"] for row in found["grep"]["patterns"]}
    assert (matches["a word in every file"], matches["a word in no line"]) == (1, 0)
    assert set(found["views"]["kinds"]) == {"no files", "closed files", "open files"}
    assert "| open files |" in printed.decode()
