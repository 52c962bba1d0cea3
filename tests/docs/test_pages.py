"""The pages say what is so: links lead somewhere, the first example runs, and unanswered RPCs are named."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from mnemesh_testkit.mesh.in_process import Mesh

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "libs/*/README.md", "services/*/README.md")
    for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
ROOMS = {
    "orchestrator": ("agents", "AgentService RunService ModelService ConversationService GroupService IdentityService"),
    "blocks": ("blocks", "BlockService"),
    "recall": ("recall", "MessageService TraceService EpisodeService"),
    "archival": ("archival", "ArchiveService PassageService"),
    "tools": ("tools", "ToolService ExecutionService McpServerService"),
}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for name, anchor in LINK.findall(page.read_text()):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {name}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in map(_anchor, headings), f"{page.name} links to #{anchor}"


async def test_the_first_agent_of_the_readme(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MNEMESH_TARGET", mesh.addresses["orchestrator"])
    for room in ("blocks", "recall", "archival", "tools"):
        monkeypatch.setenv(f"MNEMESH_{room.upper()}_TARGET", mesh.addresses[room])
    source = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    head, call = source.split("\nasyncio.run(main())")
    assert call == "\n", "the example is run as it stands, but in this test's loop"
    names: dict[str, Any] = {}
    exec(compile(ast.parse(head), "README.md", "exec"), names)
    await names["main"]()
    said = capsys.readouterr().out
    assert "→ archival_memory_insert" in said
    assert "Your name is Ada" in said
    assert "[human] Name: Ada" in said


@pytest.mark.parametrize("room", ROOMS)
def test_unanswered_rpcs_are_listed(room: str) -> None:
    """In the room's README, by name, or with all others of their service."""
    text = (ROOT / "services" / room / "README.md").read_text()
    package, services = ROOMS[room]
    for service in services.split():
        unanswered, answered = _answers(room, package, service)
        missing = [name for name in unanswered if name not in text]
        if missing:
            says_all = any(service in line and re.search(r"\ball\b", line) for line in text.splitlines())
            assert says_all, f"{service} does not answer {', '.join(missing)}"
            assert not [name for name in answered if name not in text], "all others than which?"


def _answers(room: str, package: str, service: str) -> tuple[list[str], list[str]]:
    """Names of the RPCs of a service that the room leaves to the generated base class, and of the others."""
    import_module(f"mnemesh_{room}.wiring")
    file = next(
        path.stem
        for path in (ROOT / "proto" / "mnemesh" / package / "v1").glob("*_service.proto")
        if f"\nservice {service} " in path.read_text()
    )
    base = getattr(import_module(f"mnemesh.{package}.v1.{file}_pb2_grpc"), f"{service}Servicer")
    descriptor = import_module(f"mnemesh.{package}.v1.{file}_pb2").DESCRIPTOR.services_by_name[service]
    own = [kind for kind in base.__subclasses__() if kind.__module__.startswith(f"mnemesh_{room}.")]
    answered = {name for kind in own for name in vars(kind)}
    names = [method.name for method in descriptor.methods]
    return [name for name in names if name not in answered], [name for name in names if name in answered]
