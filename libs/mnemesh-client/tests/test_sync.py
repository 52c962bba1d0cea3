"""The synchronous client of a whole mesh: plain calls, several threads, and an interrupt by the user."""

import asyncio
import os
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from mnemesh_client import sync
from mnemesh_testkit.mesh.fake_mesh import FakeMesh
from mnemesh_testkit.mesh.in_process import MeshThread
from mnemesh_testkit.timeouts import scaled

README: Final = Path(__file__).parents[1] / "README.md"
THREADS: Final = 4
INTERRUPTED: Final = """
import signal, sys
from mnemesh_client.sync import Mnemesh

signal.signal(signal.SIGINT, signal.default_int_handler)
with Mnemesh(sys.argv[1], blocks=sys.argv[2]) as client:
    agent = client.agents.create(model="mnemesh/rehearsal")
    try:
        for event in agent.send("think forever"):
            if event.HasField("message"):
                print("thinking", flush=True)
    except KeyboardInterrupt:
        client.runs.cancel(event.run_id)
        print(agent.ask("hello"))
"""


@pytest.mark.parametrize("sample", [0, 1], ids=["sync", "async"])
def test_samples_of_the_readme_run(running: MeshThread, sample: int, capsys: pytest.CaptureFixture[str]) -> None:
    source = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[sample]
    exec(source.replace("localhost:50050", running.mesh.addresses["orchestrator"]), {})
    assert "Ada" in capsys.readouterr().out


def test_turns_memory_and_files(running: MeshThread) -> None:
    with sync.Mnemesh(running.mesh.client.addresses) as client:
        agent = client.agents.create("ada", blocks={"human": "", "persona": "Kind."})

        kinds = [event.WhichOneof("event") for event in agent.send("My name is Ada.", stream_tokens=True)]

        assert (kinds[0], kinds[-1]) == ("accepted", "usage")
        assert "delta" in kinds
        assert agent.ask("Hello.")
        agent.append("human", "Likes tea.")
        assert {block.label: block.value for block in agent.memory().blocks}["human"].endswith("Likes tea.")
        agent.remember("Ada lives in Turin.")
        assert [hit.passage.text for hit in agent.search_passages("Turin")] == ["Ada lives in Turin."]
        folder = client.folders.create("notes")
        content = b"The sea is green.\n" * 10_000
        moved: list[tuple[int, int]] = []
        stored = client.files.upload(folder.id, content, name="sea.txt", on_progress=lambda *at: moved.append(at))
        assert client.files.wait(stored.file.id, timeout=scaled(120)).total_chunks > 0
        assert (client.files.read(stored.file.id), moved[-1]) == (content, (len(content), len(content)))
        with pytest.raises(sync.NotFound):
            client.agents.find("nobody")


def test_one_client_serves_several_threads(running: MeshThread) -> None:
    begin = threading.Barrier(THREADS)

    def talk(number: int) -> list[str]:
        begin.wait(timeout=scaled(60))
        agent = client.agents.create(f"thread-{number}", blocks={"human": ""})
        agent.ask("Hello.")
        agent.append("human", f"I am {number}.")
        return [block.value for block in agent.memory().blocks]

    with sync.Mnemesh(running.mesh.client.addresses) as client, ThreadPoolExecutor(THREADS) as threads:
        assert list(threads.map(talk, range(THREADS))) == [[f"I am {number}."] for number in range(THREADS)]


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
async def test_interrupt_ends_a_stream_and_the_client_still_works(mesh: FakeMesh) -> None:
    """Ctrl-C while the client waits for the next event. The calls after it are answered."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", INTERRUPTED, mesh.address, mesh.blocks), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"thinking\n"
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(scaled(60)):
        out, _ = await process.communicate()
    assert (out, process.returncode) == (b"You said: hello\n", 0)
    assert len(mesh.orchestrator.cancelled) == 1
