"""The pages are correct: links resolve, the first example runs, and unimplemented RPCs are listed."""

import ast
import code
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from mnemesh_client import Mnemesh
from mnemesh_kit.services import SERVICES, ServiceSpec
from mnemesh_testkit.fuzzing.contract import service_of
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.stubs import PROTO_SERVICES

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "libs/*/README.md", "services/*/README.md")
    for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for name, anchor in LINK.findall(page.read_text()):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {name}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in map(_anchor, headings), f"{page.name} links to #{anchor}"


async def test_first_agent_example_of_the_readme_runs(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(mesh, monkeypatch)
    source = samples("README.md")[0]
    await run_sample(source)
    await run_sample(source)
    async with Mnemesh() as client:
        assert len([agent async for agent in client.agents.list(name="ada")]) == 1
    said = capsys.readouterr().out
    assert "Your name is Ada" in said
    assert "[human] Name: Ada" in said


async def test_examples_of_groups_run(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(mesh, monkeypatch)
    round_robin, sleeptime = samples("docs/groups.md")

    await run_sample(round_robin)
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if " → " in line] == [
        "ada → memory_insert",
        "ada → archival_memory_insert",
        "bob → memory_insert",
        "bob → archival_memory_insert",
    ]
    assert "Hello, ada! I have read 1 message from ada." in said
    assert said.count("Your name is Grace (from core memory, block human).") == 3, "bob quotes ada"

    await run_sample(sleeptime)
    said = capsys.readouterr().out
    assert "I have two cats. Remember that the picnic is on Sunday." in said
    assert "the partner took" in said
    assert "I live in Paris.\nI have two cats.\nthe picnic is on Sunday." in said


def samples(page: str) -> list[str]:
    """Returns the Python samples of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def use(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a mesh the default of clients."""
    monkeypatch.setenv("MNEMESH_TARGET", mesh.addresses["orchestrator"])


async def run_sample(source: str) -> None:
    """Runs a sample as it stands, but in this test's loop."""
    head, call = source.split("\nasyncio.run(main())")
    assert call == "\n"
    names: dict[str, Any] = {}
    exec(compile(ast.parse(head), "sample.py", "exec"), names)
    await names["main"]()


def test_first_agent_example_of_the_readme_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    source = samples("README.md")[0]
    console = code.InteractiveConsole()
    for line in source.removesuffix("asyncio.run(main())\n").splitlines():
        console.push(line)
    assert callable(console.locals["main"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("spec", SERVICES, ids=lambda spec: spec.name)
def test_unimplemented_rpcs_are_listed(spec: ServiceSpec) -> None:
    """In the service's README, by name, or with all others of their proto service."""
    text = (ROOT / "services" / spec.name / "README.md").read_text()
    for full_name in spec.proto_services:
        service = full_name.rpartition(".")[2]
        unanswered, answered = _answers(spec, full_name)
        missing = [name for name in unanswered if name not in text]
        if missing:
            says_all = any(service in line and re.search(r"\ball\b", line) for line in text.splitlines())
            assert says_all, f"{service} does not answer {', '.join(missing)}"
            assert not [name for name in answered if name not in text], "all others than which?"


def _answers(spec: ServiceSpec, full_name: str) -> tuple[list[str], list[str]]:
    """Returns the RPCs of a proto service that its servicer leaves unimplemented, and the others."""
    import_module(f"{spec.package}.wiring")
    base = getattr(import_module(PROTO_SERVICES[full_name][1]), f"{full_name.rpartition('.')[2]}Servicer")
    own = [kind for kind in base.__subclasses__() if kind.__module__.startswith(f"{spec.package}.")]
    answered = {name for kind in own for name in vars(kind)}
    names = [method.name for method in service_of(full_name).methods]
    return [name for name in names if name not in answered], [name for name in names if name in answered]


def test_tests_that_the_ci_names_exist() -> None:
    named = re.findall(r"(?:libs|services|tests)/[\w./-]*tests/[\w./-]+", (ROOT / ".ci/run").read_text())
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []
