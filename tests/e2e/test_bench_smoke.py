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
@pytest.mark.parametrize("engine", ["PostgreSQL", pytest.param("SQLite", marks=pytest.mark.sweep)])
async def test_quick_benchmark_measures_every_row(tmp_path: Path, engine: str) -> None:
    out = tmp_path / "bench.json"
    command = (sys.executable, "-m", "benchmarks", "--quick", "--engine", engine, "--out", str(out))
    process = await asyncio.create_subprocess_exec(
        *command, cwd=_ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, problems = await process.communicate()
    assert process.returncode == 0, problems.decode()

    found = json.loads(out.read_text())
    assert found["machine"]["cpus"] >= 1
    assert set(found["engines"]) == {engine}
    for of_engine in found["engines"].values():
        measured = of_engine["versions"]["this"]
        at_rest = measured["at_rest"]
        assert min(at_rest["first_start"], at_rest["warm_start"]) > 0
        assert measured["memory_after_mb"] > at_rest["memory_mb"] > 50
        rows = measured["rows"]
        assert {(one["script"], one["policy"], one["agents"], one["api"]) for one in rows} == {
            (script, policy, agents, api)
            for script, policy, agents in (
                ("one-step", "v1", 1),
                ("one-step", "v1", 2),
                ("five-tools", "v2", 1),
                (None, "v1", 1),
            )
            for api in ("gRPC", "REST")
        }
        for one in rows:
            assert 0 < one["p50_ms"] <= one["p95_ms"]
            assert one["per_second"] > 0
            assert one["cpu_ms"] > 0
        assert set(of_engine["cpu_ms_by_service"][0]) >= _SERVICES | {"fake model", "load"}
    assert f"{found['engines'][engine]['versions']['this']['rows'][0]['p50_ms']:.1f}" in printed.decode()


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
