"""Tasks that fill a directory of the service, as builds of packages do."""

from pathlib import Path

import pytest
from mnemesh_sandbox import Access, Level, OutcomeStatus, Sandbox, Task
from mnemesh_sandbox.inside.watch import INTERVAL
from mnemesh_sandbox.isolation import WANTED_AS_USER
from mnemesh_testkit.timeouts import scaled

from .conftest import SETTINGS

# Longer than it takes to find that a process cannot be measured.
_FILL = f"""
def tool():
    import time
    for number in range(12):
        with open("/tmp/output/" + str(number), "w") as file:
            file.write("x")
        time.sleep({INTERVAL})
    return "filled"
"""


@pytest.mark.parametrize("layers", [None, WANTED_AS_USER], ids=["all layers", "user namespace"])
async def test_directory_is_filled_and_measured_in_every_kind_of_namespace(
    layers: frozenset[str] | None, tmp_path: Path
) -> None:
    sandbox = await Sandbox.open(SETTINGS, layers=layers)
    if sandbox.isolation.level < Level.FULL:
        pytest.skip(f"this host cannot confine a task with a directory: {dict(sandbox.isolation.missing)}")
    output = tmp_path / "output"
    output.mkdir()
    output.chmod(0o777)
    outcome = await sandbox.run(Task(_FILL, "tool"), scaled(60), Access(output=str(output)))
    assert (outcome.status, outcome.text) == (OutcomeStatus.SUCCESS, "filled")
    assert len(list(output.iterdir())) == 12
