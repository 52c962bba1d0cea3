"""Tools with packages, on a running service, from an index on this host."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mnemesh.tools.v1 import execution_service_pb2 as pb
from mnemesh.tools.v1 import tools_pb2, tools_service_pb2
from mnemesh_sandbox import Level
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.mesh.in_process import probe_sandbox
from mnemesh_testkit.timeouts import scaled
from mnemesh_tools.config import Config

from ..conftest import Stubs, serve
from .index import PackageIndex, serving

GREET = '''
def greet(name: str) -> str:
    """Greets.

    Args:
        name: Who.
    """
    import greeting
    return greeting.greet(name)
'''
GREETING = "import accent\ndef greet(name):\n    return f'hello {name}{accent.MARK}'\n"
READY = tools_pb2.PACKAGES_STATE_READY


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    """An index with two versions of a package, and one that it requires."""
    with serving() as found:
        found.add("greeting", "1.0", GREETING, requires=("accent>=2",))
        found.add("greeting", "1.1", GREETING.replace("hello", "good day"), requires=("accent>=2",))
        found.add("accent", "2.0", "MARK = '!'\n")
        yield found


def _config(tmp_path: Path, index: PackageIndex, **settings: Any) -> Config:
    fields = {"package_index": index.url, "min_sandbox": "minimal", "package_hosts": "", **settings}
    return Config(port=0, data_dir=str(tmp_path), **fields)


@pytest_asyncio.fixture
async def stubs(tmp_path: Path, index: PackageIndex) -> AsyncIterator[Stubs]:
    """A running service with that index."""
    config = _config(tmp_path, index)
    if (await probe_sandbox(config.sandbox)).isolation.level < Level.FULL:
        pytest.skip("this host cannot confine a build")
    async with serve(config) as found:
        yield found


def _requirement(name: str, version: str | None = None) -> tools_pb2.PackageRequirement:
    return tools_pb2.PackageRequirement(name=name, version=version)


async def _create(stubs: Stubs, source: str = GREET, **requirements: str | None) -> tools_pb2.Tool:
    packages = [_requirement(name, version) for name, version in requirements.items()]
    tool = tools_pb2.Tool(source_code=source, pip_requirements=packages)
    return (await stubs.tools.CreateTool(tools_service_pb2.CreateToolRequest(tool=tool))).tool


async def _get(stubs: Stubs, tool: tools_pb2.Tool) -> tools_pb2.Tool:
    return (await stubs.tools.GetTool(tools_service_pb2.GetToolRequest(tool_id=tool.id))).tool


async def _greet(stubs: Stubs, tool: tools_pb2.Tool) -> pb.ExecuteToolResponse:
    return await stubs.executions.ExecuteTool(pb.ExecuteToolRequest(tool_id=tool.id, arguments='{"name": "Ana"}'))


async def test_tool_imports_its_packages_and_theirs(stubs: Stubs, index: PackageIndex) -> None:
    tool = await _create(stubs, greeting="1.0")
    assert tool.packages.state in (tools_pb2.PACKAGES_STATE_PENDING, tools_pb2.PACKAGES_STATE_RESOLVING)
    answer = await _greet(stubs, tool)
    assert answer.result == "hello Ana!", answer
    found = await _get(stubs, tool)
    assert found.packages.state == READY
    assert {item.name: item.version for item in found.packages.locked} == {"greeting": "1.0", "accent": "2.0"}
    assert found.packages.size_bytes > 0
    assert found.revision == tool.revision, "the lock is not a change of the tool"
    seen = len(index.requests)
    assert (await _greet(stubs, tool)).result == "hello Ana!"
    assert len(index.requests) == seen, "the packages are installed once"


@pytest.mark.full
async def test_equal_locks_share_a_directory_and_versions_stay(
    stubs: Stubs, index: PackageIndex, tmp_path: Path
) -> None:
    first = await _create(stubs, greeting=">=1,<2")
    assert (await _greet(stubs, first)).result == "good day Ana!"
    index.add("greeting", "1.2", GREETING.replace("hello", "hi"), requires=("accent",))
    assert (await _greet(stubs, first)).result == "good day Ana!"
    second = await _create(stubs, GREET.replace("def greet(", "def salute("), greeting="1.1")
    assert (await _greet(stubs, second)).result == "good day Ana!"
    assert len(list((tmp_path / "packages").iterdir())) == 1
    newest = await _create(stubs, GREET.replace("def greet(", "def wave("), greeting=None)
    assert (await _greet(stubs, newest)).result == "hi Ana!"


@pytest.mark.full
async def test_changed_requirements_are_resolved_again(stubs: Stubs) -> None:
    tool = await _create(stubs, greeting="1.0")
    assert (await _greet(stubs, tool)).result == "hello Ana!"
    changed = tools_pb2.Tool(id=tool.id, pip_requirements=[_requirement("greeting", "1.1")])
    request = tools_service_pb2.UpdateToolRequest(tool=changed)
    request.update_mask.paths.append("pip_requirements")
    updated = (await stubs.tools.UpdateTool(request)).tool
    assert updated.packages.state != READY
    assert (await _greet(stubs, tool)).result == "good day Ana!"


@pytest.mark.full
async def test_ad_hoc_tool_has_packages(stubs: Stubs) -> None:
    ad_hoc = pb.AdHocTool(source_code=GREET, pip_requirements=[_requirement("greeting", "1.0")])
    request = pb.ExecuteToolRequest(ad_hoc=ad_hoc, arguments='{"name": "Bo"}')
    assert (await stubs.executions.ExecuteTool(request)).result == "hello Bo!"


async def test_simultaneous_calls_share_one_build(stubs: Stubs, index: PackageIndex) -> None:
    tool = await _create(stubs, greeting="1.0")
    answers = await asyncio.gather(*(_greet(stubs, tool) for _ in range(4)))
    assert {answer.result for answer in answers} == {"hello Ana!"}
    assert index.requests.count("/simple/greeting/") <= 2, "once for the lock, and once for the installation"


async def test_installed_packages_survive_a_restart_without_the_index(tmp_path: Path, index: PackageIndex) -> None:
    config = _config(tmp_path, index)
    async with serve(config) as stubs:
        tool = await _create(stubs, greeting="1.0")
        assert (await _greet(stubs, tool)).result == "hello Ana!"
    leftover = tmp_path / "packages" / "building-left"
    leftover.mkdir()
    index.requests.clear()
    async with serve(config) as stubs:
        assert (await _get(stubs, tool)).packages.state == READY
        assert (await _greet(stubs, tool)).result == "hello Ana!"
    assert index.requests == []
    assert not leftover.exists()


async def test_tools_cannot_change_shared_packages(stubs: Stubs) -> None:
    source = '''
def greet(name: str) -> str:
    """Tries to change a package.

    Args:
        name: Unused.
    """
    import greeting
    try:
        open(greeting.__file__, "a")
    except OSError as error:
        return type(error).__name__
'''
    assert (await _greet(stubs, await _create(stubs, source, greeting="1.0"))).result in ("PermissionError", "OSError")


@pytest.mark.parametrize(
    ("requirements", "words"),
    [
        ({"missing": None}, "cannot be installed: No solution found"),
        pytest.param({"greeting": "9.9"}, "greeting==9.9", marks=pytest.mark.full),
        pytest.param({"greeting": "1.0", "accent": "1.0"}, "accent", marks=pytest.mark.full),
        ({"native": "1.0"}, "native"),
    ],
)
async def test_packages_that_cannot_be_resolved(
    stubs: Stubs, index: PackageIndex, requirements: dict[str, str | None], words: str
) -> None:
    index.add_source("native", "1.0", "open('/tmp/ran', 'w')")
    tool = await _create(stubs, **requirements)
    error = await catch_refusal(_greet(stubs, tool))
    assert error.reason == "TOOL_REQUIREMENTS_UNMET"
    assert words in error.message
    found = await _get(stubs, tool)
    assert found.packages.state == tools_pb2.PACKAGES_STATE_FAILED
    assert words in found.packages.error
    index.requests.clear()
    assert (await catch_refusal(_greet(stubs, tool))).message == error.message
    assert index.requests == [], "a failure is not repeated at once"


@pytest.mark.full
async def test_index_that_cannot_be_reached_fails_at_once(tmp_path: Path, index: PackageIndex) -> None:
    config = _config(tmp_path, index, package_index="http://127.0.0.1:9/simple")
    async with serve(config) as stubs:
        tool = await _create(stubs, greeting="1.0")
        error = await asyncio.wait_for(catch_refusal(_greet(stubs, tool)), scaled(60))
    assert "the package index cannot be reached" in error.message


@pytest.mark.full
async def test_file_on_another_host_is_refused(stubs: Stubs, index: PackageIndex) -> None:
    """An index can name files of any host. Only those of the operator are reached."""
    real = index.files["accent"].pop("accent-2.0-py3-none-any.whl")
    index.files["accent"]['http://files.example/accent-2.0-py3-none-any.whl"><i a="'] = real
    error = await catch_refusal(_greet(stubs, await _create(stubs, greeting="1.0")))
    assert "cannot be installed" in error.message


async def test_wait_for_packages_is_bounded(tmp_path: Path, index: PackageIndex) -> None:
    index.hang.clear()
    config = _config(tmp_path, index, package_wait_seconds=0.2)
    async with serve(config) as stubs:
        tool = await _create(stubs, greeting="1.0")
        error = await catch_refusal(_greet(stubs, tool))
        assert "still being installed after 0.2 seconds" in error.message
        found = await _get(stubs, tool)
        assert found.packages.state == tools_pb2.PACKAGES_STATE_RESOLVING
        assert found.packages.HasField("start_time")
        index.hang.set()


async def test_packages_can_be_switched_off(tmp_path: Path, index: PackageIndex) -> None:
    async with serve(_config(tmp_path, index, packages="none")) as stubs:
        error = await catch_refusal(_create(stubs, greeting="1.0"))
    assert (error.reason, error.metadata["field"]) == ("TOOL_REQUIREMENTS_UNMET", "tool.pip_requirements")


@pytest.mark.parametrize(
    ("name", "version"),
    [
        *(("greeting @ file:///etc/passwd", None), ("../greeting", None), ("--index-url", None), ("", None)),
        *(("greeting", "1.0 --pre"), ("greeting", "1.0; python_version > '3'"), ("greeting", "one\ntwo")),
        ("greeting", "=1"),
    ],
)
async def test_requirements_that_name_no_package_are_refused(stubs: Stubs, name: str, version: str | None) -> None:
    tool = tools_pb2.Tool(source_code=GREET, pip_requirements=[_requirement(name, version)])
    error = await catch_refusal(stubs.tools.CreateTool(tools_service_pb2.CreateToolRequest(tool=tool)))
    assert (error.reason, error.metadata["field"]) == ("INVALID_ARGUMENT", "tool.pip_requirements")


@pytest.mark.full
async def test_pydantic_models_need_the_package(stubs: Stubs, index: PackageIndex) -> None:
    index.add(
        "pydantic",
        "2.0",
        "class BaseModel:\n    def __init__(self, **fields):\n        self.__dict__.update(fields)\n"
        "    @classmethod\n    def model_validate(cls, fields):\n        return cls(**fields)\n",
    )
    source = "from pydantic import BaseModel\nclass Person(BaseModel):\n    name: str\n" + GREET.replace(
        "name: str) ->", "name: Person) ->"
    ).replace("    import greeting\n    return greeting.greet(name)", "    return type(name).__name__ + name.name")
    assert (await catch_refusal(_create(stubs, source))).metadata["missing"] == "pydantic"
    tool = await _create(stubs, source, pydantic="2.0")
    request = pb.ExecuteToolRequest(tool_id=tool.id, arguments='{"name": {"name": "Ana"}}')
    assert (await stubs.executions.ExecuteTool(request)).result == "PersonAna"
