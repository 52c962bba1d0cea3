"""The smoke script works against a gateway."""

import asyncio
import runpy
from pathlib import Path

import pytest
from mnemesh_client import Agent
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply

SCRIPT = Path(__file__).parents[3] / "scripts" / "proxy_overlay_smoketest.py"


async def test_smoke_script(
    base_url: str,
    agent: Agent,
    fake_openai: FakeOpenAI,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_openai.script = lambda _: Reply(text="Certainly, Ada.")
    monkeypatch.setenv("PROXY_BASE_URL", base_url)
    monkeypatch.setenv("PROXY_SESSION_ID", "smoke")
    main = runpy.run_path(str(SCRIPT))["main"]
    assert await asyncio.to_thread(main) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("OK", "FAIL", "gateway"))]
    assert [line.split()[0] for line in lines] == ["gateway", *["OK"] * 4]
    assert lines[0].endswith("agent ada, session smoke")
    assert len(fake_openai.requests) == 4
