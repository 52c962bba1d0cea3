"""Packages and indexes that harm: a clear error, nothing left behind, and other tools unaffected."""

import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from mnemesh.tools.v1 import execution_service_pb2 as pb
from mnemesh.tools.v1 import tools_pb2
from mnemesh_kit.errors import MnemeshError, from_rpc_error
from mnemesh_sandbox import OUTPUT_DIRECTORY, Level
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.mesh.in_process import probe_sandbox
from mnemesh_testkit.timeouts import scaled
from mnemesh_tools import config as settings
from mnemesh_tools.config import Config

from ..conftest import Stubs, serve
from .index import PackageIndex, serving, wheel

pytestmark = [pytest.mark.full, pytest.mark.asyncio(loop_scope="module")]
HARMLESS = "VALUE = 'harmless'\n"


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    with serving() as found:
        found.add("harmless", "1.0", HARMLESS)
        yield found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("service")
    (found / "data").mkdir()
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stubs(directory: Path, index: PackageIndex) -> AsyncIterator[Stubs]:
    """A running service that builds from source, too, in at most 64 MB."""
    async with service(directory / "data", index, build_seconds=scaled(60)) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def impatient(tmp_path: Path, index: PackageIndex) -> AsyncIterator[Stubs]:
    """Another one, in at most two seconds."""
    async with service(tmp_path, index, build_seconds=2.0) as found:
        yield found


@asynccontextmanager
async def service(data: Path, index: PackageIndex, build_seconds: float) -> AsyncIterator[Stubs]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "MAX_BUILD_MB", 64)
        config = Config(
            port=0,
            data_dir=str(data),
            package_index=index.url,
            package_hosts="",
            packages="source",
            package_build_seconds=build_seconds,
            min_sandbox="minimal",
            warm_processes=0,
        )
        if (await probe_sandbox(config.sandbox)).isolation.level < Level.FULL:
            pytest.skip("this host cannot confine a build")
        async with serve(config) as found:
            yield found


async def run(stubs: Stubs, body: str, package: str, *, seconds: int = 0) -> pb.ExecuteToolResponse:
    source = f'def tool() -> str:\n    """Uses a package."""\n    {body}\n'
    requirement = tools_pb2.PackageRequirement(name=package)
    tool = pb.AdHocTool(source_code=source, pip_requirements=[requirement])
    request = pb.ExecuteToolRequest(ad_hoc=tool)
    if seconds:
        request.timeout.seconds = seconds
    return await stubs.executions.ExecuteTool(request)


async def refusal(stubs: Stubs, package: str) -> MnemeshError:
    return await catch_refusal(run(stubs, "return ''", package))


async def refused_or(stubs: Stubs, body: str, package: str, result: str) -> None:
    """Runs a tool whose package is refused, or does no harm. uv decides which of them, and may change."""
    try:
        answer = await run(stubs, body, package)
    except grpc.aio.AioRpcError as caught:
        error = from_rpc_error(caught)
    else:
        assert answer.result == result, answer
        return
    assert error.reason == "TOOL_REQUIREMENTS_UNMET"


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def unaffected(stubs: Stubs, directory: Path) -> AsyncIterator[None]:
    """After each test, another tool runs, no build is left, and no file lies outside of the packages."""
    yield
    assert (await run(stubs, "import harmless; return harmless.VALUE", "harmless")).result == "harmless"
    packages = directory / "data" / "packages"
    assert [each.name for each in packages.iterdir() if each.name.startswith("building-")] == []
    assert sorted(each.name for each in directory.iterdir()) == ["data"]
    assert not list(Path("/tmp").glob("*evil*"))
    for each in packages.rglob("*"):
        assert not each.is_symlink() or each.resolve().is_relative_to(packages), each


@pytest.mark.parametrize(
    "path",
    ["../../../evil.py", "/tmp/evil.py", "traversal/../../../evil.py", "traversal-1.0.data/data/../../../../evil"],
)
async def test_wheel_that_writes_elsewhere(stubs: Stubs, index: PackageIndex, path: str) -> None:
    index.files.pop("traversal", None)
    index.add_wheel("traversal", {"traversal/__init__.py": f"WHERE = {path!r}\n", path: "evil"})
    await refused_or(stubs, "import traversal; return 'installed without it'", "traversal", "installed without it")


async def test_wheel_with_links(stubs: Stubs, index: PackageIndex, directory: Path) -> None:
    index.add_wheel(
        "links", {"links/__init__.py": ""}, links={"links/data": str(directory), "links/passwd": "/etc/passwd"}
    )
    body = "import links, os; return str([os.path.exists(os.path.dirname(links.__file__) + '/data/data')])"
    await refused_or(stubs, body, "links", "[False]")


async def test_pth_file_runs_in_the_tool_only(stubs: Stubs, index: PackageIndex) -> None:
    code = "import os, sys; sys.started = (os.getuid(), os.path.exists('/proc/1/root/root'))\n"
    index.add_wheel("paths", {"paths/__init__.py": "", "paths.pth": code})
    answer = await run(stubs, "import sys; return str(sys.started[1])", "paths")
    assert answer.result == "False", answer


async def test_wheel_that_expands_beyond_the_limit(stubs: Stubs, index: PackageIndex) -> None:
    index.add_wheel("huge", {"huge/__init__.py": "", "huge/zeros": b"\0" * (160 << 20)})
    error = await refusal(stubs, "huge")
    assert error.reason == "TOOL_REQUIREMENTS_UNMET"
    assert "64 MB" in error.message or "too large" in error.message, error.message


async def test_wheel_with_many_files(stubs: Stubs, index: PackageIndex) -> None:
    index.add_wheel("many", {"many/__init__.py": "", **{f"many/f{n}.txt": "" for n in range(1000)}})
    assert (await run(stubs, "import many; return 'ran'", "many")).result == "ran"


async def test_file_with_another_hash(stubs: Stubs, index: PackageIndex) -> None:
    index.add("altered", "1.0", HARMLESS)
    index.hashes["altered-1.0-py3-none-any.whl"] = hashlib.sha256(b"other").hexdigest()
    error = await refusal(stubs, "altered")
    assert "hash" in error.message.lower(), error.message


@pytest.mark.parametrize(
    ("source", "status", "part"),
    [
        ("import ctypes\nctypes.string_at(0)\n", pb.EXECUTION_STATUS_KILLED, "SIGSEGV"),
        ("import os\nos._exit(3)\n", pb.EXECUTION_STATUS_ERROR, "its process ended"),
        ("import time\ntime.sleep(1000)\n", pb.EXECUTION_STATUS_TIMED_OUT, "1 second"),
        ("raise SystemExit(0)\n", pb.EXECUTION_STATUS_ERROR, "SystemExit"),
        ("x = b'x' * (4 << 30)\n", pb.EXECUTION_STATUS_KILLED, "Memory"),
    ],
)
async def test_import_that_harms(stubs: Stubs, index: PackageIndex, source: str, status: int, part: str) -> None:
    name = f"import{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    index.add(name, "1.0", source)
    answer = await run(stubs, f"import {name}; return ''", name, seconds=1 if "sleep" in source else 0)
    assert (answer.status, part in answer.result) == (status, True), answer


async def test_standard_library_stays(stubs: Stubs, index: PackageIndex) -> None:
    evil = "raise RuntimeError('shadowed')\n"
    files = {"shadow/__init__.py": "", **{f"{name}.py": evil for name in ("json", "os", "linecache", "sitecustomize")}}
    index.add_wheel("shadow", files)
    answer = await run(stubs, "import shadow, json, linecache; return json.dumps([1])", "shadow")
    assert answer.result == "[1]", answer


BACKEND = """
import os, urllib.request
def get_requires_for_build_wheel(config_settings=None):
    seen = []
    for path in ("/root/.ssh", "{data}", "/etc/shadow", "/proc/1/environ"):
        try:
            os.listdir(path) if os.path.isdir(path) else open(path).read()
            seen.append(path)
        except OSError:
            pass
    for url in ("http://127.0.0.1:9/", "http://169.254.169.254/", "http://example.com/"):
        try:
            urllib.request.urlopen(url, timeout=2)
            seen.append(url)
        except OSError as error:
            seen += [url] if "not granted" not in str(error.read() if hasattr(error, "read") else error) else []
    seen += [name for name in os.environ if "MNEMESH" in name or "KEY" in name]
    raise SystemExit("BUILD SAW " + repr(seen))
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


async def test_build_that_looks_around(stubs: Stubs, index: PackageIndex, directory: Path) -> None:
    """The code of a build runs, and finds neither files nor networks nor secrets."""
    backend = BACKEND.format(data=directory / "data")
    index.add_source("curious", "1.0", "", {"pyproject.toml": PROJECT, "backend.py": backend})
    error = await refusal(stubs, "curious")
    assert error.reason == "TOOL_REQUIREMENTS_UNMET"
    assert "BUILD SAW []" in error.message, error.message


LEAVING = """
import os, subprocess, sys, time
def get_requires_for_build_wheel(config_settings=None):
    if os.fork() == 0:  # its parent ends at once, and it keeps the pipes of the build
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    raise SystemExit("BUILD ENDED")
"""


async def test_build_that_leaves_a_process(stubs: Stubs, index: PackageIndex) -> None:
    """uv waits for the output of the build, which that process holds open."""
    index.add_source("leaving", "1.0", "", {"pyproject.toml": PROJECT, "backend.py": LEAVING})
    error = await refusal(stubs, "leaving")
    assert "BUILD ENDED" in error.message, error.message


async def test_build_that_leaves_links(stubs: Stubs, index: PackageIndex, directory: Path) -> None:
    """A build could replace the directory of its packages."""
    backend = "import os, shutil\ndef get_requires_for_build_wheel(config_settings=None):\n"
    backend += f"    target = '{OUTPUT_DIRECTORY}/site'\n    shutil.rmtree(target, ignore_errors=True)\n"
    backend += f"    os.symlink('{directory}', target)\n    return []\n"
    index.add_source("replacing", "1.0", "", {"pyproject.toml": PROJECT, "backend.py": backend})
    assert (await refusal(stubs, "replacing")).reason == "TOOL_REQUIREMENTS_UNMET"


async def test_resolution_that_never_ends(impatient: Stubs, index: PackageIndex) -> None:
    """Versions that exclude each other pairwise."""
    for name, other in (("bomb_a", "bomb_b"), ("bomb_b", "bomb_c"), ("bomb_c", "bomb_a")):
        for version in range(40):
            needed = f"{other.replace('_', '-')}=={(version * 7 + 1) % 40}.{version % 2}"
            index.files.setdefault(name.replace("_", "-"), {})[f"{name}-{version}.0-py3-none-any.whl"] = wheel(
                name, f"{version}.0", "", (needed,)
            )
    error = await refusal(impatient, "bomb-a")
    assert error.reason == "TOOL_REQUIREMENTS_UNMET"
    assert len(error.message) < 2000


@pytest.mark.parametrize(
    "page",
    [b"", b"\0\xff garbage", b"<html>" + b"<a href='x'>" * 10_000, b"x" * (80 << 20)],
    ids=["empty", "garbage", "links", "80 MB"],
)
async def test_index_that_answers_garbage(stubs: Stubs, index: PackageIndex, page: bytes) -> None:
    name = f"garbage{len(page)}"
    index.pages[f"/simple/{name}/"] = page
    error = await refusal(stubs, name)
    assert (error.reason, len(error.message) < 2000) == ("TOOL_REQUIREMENTS_UNMET", True)


async def test_wheel_that_is_none(stubs: Stubs, index: PackageIndex) -> None:
    index.files["nozip"] = {"nozip-1.0-py3-none-any.whl": b"PK\x03\x04 no zip"}
    assert (await refusal(stubs, "nozip")).reason == "TOOL_REQUIREMENTS_UNMET"


async def test_index_that_drips(impatient: Stubs, index: PackageIndex) -> None:
    """It ends with the time of a build."""
    index.drips.add("/simple/slow/")
    error = await refusal(impatient, "slow")
    assert "2 seconds" in error.message, error.message
