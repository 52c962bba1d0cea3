"""System prompts by key: built-in and custom ones."""

from pathlib import Path

import pytest
from mnemesh_kit.errors import NotFound
from mnemesh_orchestrator.model.agents import AGENT_TYPES
from mnemesh_orchestrator.prompt.assembly import Prompts, SystemPrompt

BUILTIN = (
    "letta_v1",
    "memgpt_chat",
    "memgpt_generate_tool",
    "memgpt_v2_chat",
    "react",
    "sleeptime_doc_ingest",
    "sleeptime_v2",
    "summary_system_prompt",
    "voice_chat",
    "voice_sleeptime",
    "workflow",
)


@pytest.fixture
def prompts(tmp_path: Path) -> Prompts:
    return Prompts(tmp_path / "data" / "system_prompts")


def test_all_builtin_prompts_exist(prompts: Prompts) -> None:
    assert tuple(prompt.key for prompt in prompts.all()) == BUILTIN
    assert all(len(prompts.get(key).text) > 300 for key in BUILTIN)


def test_every_agent_type_has_a_prompt(prompts: Prompts) -> None:
    assert {spec.prompt_key for spec in AGENT_TYPES.values()} <= set(BUILTIN)


@pytest.mark.parametrize("key", BUILTIN)
def test_prompts_are_original_and_complete(prompts: Prompts, key: str) -> None:
    text = prompts.get(key).text
    assert "letta" not in text.lower()
    assert "limnal" not in text.lower()
    assert "{CORE_MEMORY}" not in text
    for tag in ("base_instructions", "memory", "style", "control_flow", "core_memory", "recall_memory"):
        assert text.count(f"<{tag}>") == text.count(f"</{tag}>") <= 1


def test_chat_prompt_matches_the_loop(prompts: Prompts) -> None:
    text = prompts.get("memgpt_v2_chat").text
    assert "request_heartbeat" in text
    assert "send_message. It is the only action that the user can see" in text
    assert "never put them into the text" in text


def test_custom_prompt_is_a_file_in_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "there"
    prompts = Prompts(directory)
    (directory / "pirate.txt").write_text("Arr {CORE_MEMORY} {}", encoding="utf-8")
    pirate = SystemPrompt("pirate", "Arr {CORE_MEMORY} {}", built_in=False)
    assert prompts.get("pirate") == pirate
    assert pirate in prompts.all()


@pytest.mark.parametrize("key", ["unknown", "", "../secret", "a/b", "..", "/etc/passwd", "x\0y"])
def test_unknown_key_is_not_found_and_never_a_path(tmp_path: Path, key: str) -> None:
    (tmp_path / "secret.txt").write_text("hidden", encoding="utf-8")
    with pytest.raises(NotFound):
        Prompts(tmp_path / "prompts").get(key)


def test_builtin_prompt_cannot_be_overridden(tmp_path: Path) -> None:
    (tmp_path / "react.txt").write_text("other", encoding="utf-8")
    assert Prompts(tmp_path).get("react").text != "other"
