"""Environment variables of tools: values are encrypted for one owner, and their keys can be replaced."""

from pathlib import Path

import pytest
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.secret_variables import SecretBox, SecretUnreadable, SecretVariables, require_valid_variables
from mnemesh_kit.time import FrozenClock


def variables(directory: Path, *keys: str) -> SecretVariables:
    file = directory / "keys"
    file.write_text("".join(f"{key * 32}\n" for key in keys))
    return SecretVariables(SecretBox(str(file)), FrozenClock())


def test_values_belong_to_one_owner(tmp_path: Path) -> None:
    box = variables(tmp_path, "a")
    stored = box.sealed("agent-1", {"KEY": "value"})
    assert box.opened("agent-1", stored) == {"KEY": "value"}
    assert "value" not in repr(stored)
    with pytest.raises(SecretUnreadable):
        box.opened("agent-2", stored)


def test_key_can_be_replaced(tmp_path: Path) -> None:
    old = variables(tmp_path, "a").sealed("agent-1", {"KEY": "value"})
    both = variables(tmp_path, "b", "a")
    new = both.resealed("agent-1", old)
    assert (new[0].sealed, new[0].updated_at) != (old[0].sealed, old[0].updated_at)
    assert both.resealed("agent-1", new) == new
    alone = variables(tmp_path, "b")
    assert alone.opened("agent-1", new) == {"KEY": "value"}
    with pytest.raises(SecretUnreadable):
        alone.opened("agent-1", old)


def test_value_that_cannot_be_read_any_more_can_be_replaced(tmp_path: Path) -> None:
    old = variables(tmp_path, "a").sealed("agent-1", {"KEY": "value"})
    box = variables(tmp_path, "b")
    merged = box.merged("agent-1", old, box.sealed("agent-1", {"KEY": "value"}), "agent.secrets")
    assert box.opened("agent-1", merged) == {"KEY": "value"}


@pytest.mark.parametrize(
    "name", ["PATH", "Path", "LD_LIBRARY_PATH", "PYTHONHOME", "MNEMESH_X", "NO_PROXY", "1A", "A-B"]
)
def test_names_that_change_programs_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        require_valid_variables({name: "value"}, "agent.secrets")
    assert raised.value.field == "agent.secrets"
    assert name in raised.value.message
