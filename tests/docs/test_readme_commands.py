"""The commands of the README and the page of files run as a reader types them, from the root of the repository."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from mnemesh_cli.main import main
from mnemesh_testkit.mesh.in_process import Mesh, MeshThread
from mnemesh_testkit.timeouts import scaled

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(scaled(600))
def test_each_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands run in this process: the start of one takes longer than most of its work."""
    text = (ROOT / "README.md").read_text() + (ROOT / "docs/files.md").read_text()
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("MNEMESH_DATA_DIR", str(tmp_path / "none"))
    with MeshThread(Mesh(tmp_path, in_memory=True)) as running:
        monkeypatch.setenv("MNEMESH_TARGET", running.mesh.addresses["orchestrator"])
        for command in "".join(blocks).splitlines():
            monkeypatch.setattr(sys, "argv", shlex.split(command))
            assert sys.argv[0] == "mnemesh"
            assert exit_code() == 0, (command, *capsys.readouterr())
    said = capsys.readouterr().out
    assert "Name: Carol" in said
    assert '"status": "RUN_STATUS_COMPLETED"' in said
    assert "operations.md" in said


def exit_code() -> int:
    """Runs the command line."""
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0
