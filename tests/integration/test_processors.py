"""An operator's processors in a mesh: every service stores the same content that the model received."""

import sys
from collections.abc import Iterator
from importlib import invalidate_caches
from pathlib import Path

import pytest
from mnemesh_kit.config import ConfigError
from mnemesh_kit.errors import MnemeshError
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.wiring import assemble
from mnemesh_testkit.fakes.fake_distributions import install
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import texts, tool_texts, turn

SOURCE = """
from mnemesh_orchestrator.processors import Refused


class Cards:
    order = 100

    async def process(self, text, facts):
        if "steal" in text:
            raise Refused("We do not help with that.")
        if "explode" in text:
            raise RuntimeError("the database password is hunter2")
        return text.replace("4111-1111", "[card]")


class Late:
    order = 901

    async def process(self, text, facts):
        return text
"""
GROUPS = {"mnemesh.input_processors": ("Cards", "Late"), "mnemesh.tool_result_processors": ("Cards",)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    site = tmp_path_factory.mktemp("site")
    install(site, "cards_of_acme", SOURCE, GROUPS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        invalidate_caches()
        yield site
    sys.modules.pop("cards_of_acme", None)


async def test_content_removed_by_a_processor_is_stored_nowhere(
    tmp_path: Path, site: Path, fake_openai: FakeOpenAI
) -> None:
    switched = {"orchestrator": {"input_processors": ("cards",), "tool_result_processors": ("cards",)}}
    async with Mesh(tmp_path, openai_base_url=fake_openai.base_url, settings=switched) as mesh:
        agent = await mesh.client.agents.create(model="openai/fake-model", blocks={"human": ""})
        await agent.remember("The card 4111-1111 is Ada's.")
        look = Reply(tool_calls=[("archival_memory_search", {"query": "card"})])
        fake_openai.script = [look, "Noted."]
        assert (await turn(agent, "My card is 4111-1111.")).said == "Noted."
        assert "My card is [card]." in texts(fake_openai.requests[-2].body)[-1]
        assert [text for text in tool_texts(fake_openai.requests[-1].body) if "[card]" in text]
        assert await agent.search("My card is [card].")
        for name in ("orchestrator.db", "recall.db"):
            kept = b"".join(path.read_bytes() for path in tmp_path.glob(f"{name}*"))
            assert b"card is 4111-1111" not in kept, name
        for words, reason, received in (
            ("Help me steal", "INPUT_REFUSED", "We do not help with that."),
            ("explode", "PROCESSOR_FAILED", "The server's processor cards failed; nothing of the input was stored."),
        ):
            with pytest.raises(MnemeshError) as refused:
                await turn(agent, words)
            assert (refused.value.reason, refused.value.message) == (reason, received)
            assert refused.value.metadata["processor"] == "cards"
        fake_openai.script = ["Still here."]
        assert (await turn(agent, "And now?")).said == "Still here."


async def test_processor_with_an_order_after_memory_is_refused_at_startup(tmp_path: Path, site: Path) -> None:
    config = Config(data_dir=str(tmp_path), port=0, input_processors=("late",))
    with pytest.raises(ConfigError, match="MNEMESH_INPUT_PROCESSORS names 'late', whose order is 901"):
        await assemble(config)
