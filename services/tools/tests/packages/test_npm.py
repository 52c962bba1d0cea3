"""Tools in TypeScript with npm packages, on a running service, from a registry on this host."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from mnemesh.tools.v1 import execution_service_pb2 as pb
from mnemesh.tools.v1 import tools_pb2, tools_service_pb2
from mnemesh_sandbox import Level
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.mesh.in_process import probe_sandbox
from mnemesh_tools.config import Config
from mnemesh_tools.model.packages import npm_line
from mnemesh_types.tools import Requirement

from ..conftest import Stubs, serve
from .registry import Registry, serving

GREET = """
import { greet as say } from 'greeting';
/**
 * Greets.
 * @param name Who.
 */
export function greet(name: string) {
  return say(name) + require('@tests/accent').mark;
}
"""


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A registry with two packages, one of which requires another one and has a script."""
    with serving() as found:
        source = "const { mark } = require('@tests/accent');\nexports.greet = (name) => `hello ${name}${mark}`;\n"
        scripts = {"postinstall": "node -e \"require('fs').writeFileSync('ran', '')\""}
        found.add("@tests/accent", "2.0.0", "exports.mark = '?';\n")
        found.add("@tests/accent", "2.1.0", "exports.mark = '!';\n")
        found.add("greeting", "1.0.0", source, dependencies={"@tests/accent": "^2.0.0"}, scripts=scripts)
        found.add("linked", "1.0.0", "", dependencies={"elsewhere": "git+https://example.test/elsewhere.git"})
        yield found


def _config(tmp_path: Path, registry: str) -> Config:
    return Config(port=0, data_dir=str(tmp_path), npm_registry=registry, package_hosts="", min_sandbox="minimal")


@pytest_asyncio.fixture
async def stubs(tmp_path: Path, registry: Registry) -> AsyncIterator[Stubs]:
    """A running service with that registry."""
    config = _config(tmp_path, registry.url)
    if (await probe_sandbox(config.sandbox)).isolation.level < Level.FULL:
        pytest.skip("this host cannot confine a build")
    async with serve(config) as found:
        yield found


async def _create(stubs: Stubs, source: str = GREET, **requirements: str | None) -> tools_pb2.Tool:
    packages = [
        tools_pb2.PackageRequirement(name=name.replace("__", "/").replace("at_", "@"), version=version)
        for name, version in requirements.items()
    ]
    tool = tools_pb2.Tool(source_code=source, source_type=tools_pb2.SOURCE_TYPE_TYPESCRIPT, npm_requirements=packages)
    return (await stubs.tools.CreateTool(tools_service_pb2.CreateToolRequest(tool=tool))).tool


async def _greet(stubs: Stubs, tool: tools_pb2.Tool) -> pb.ExecuteToolResponse:
    return await stubs.executions.ExecuteTool(pb.ExecuteToolRequest(tool_id=tool.id, arguments='{"name": "Ana"}'))


async def test_tool_imports_its_packages_and_theirs(stubs: Stubs, registry: Registry, tmp_path: Path) -> None:
    tool = await _create(stubs, greeting="^1", at_tests__accent="2.1.0")
    answer = await _greet(stubs, tool)
    assert answer.result == "hello Ana!!", answer
    found = (await stubs.tools.GetTool(tools_service_pb2.GetToolRequest(tool_id=tool.id))).tool
    assert found.packages.state == tools_pb2.PACKAGES_STATE_READY
    assert {item.name: item.version for item in found.packages.locked} == {
        "greeting": "1.0.0",
        "@tests/accent": "2.1.0",
    }
    assert not list(tmp_path.glob("packages/**/ran")), "scripts of packages are not executed"
    seen = len(registry.requests)
    other = await _create(
        stubs, GREET.replace("function greet(", "function welcome("), greeting="^1", at_tests__accent="2.1.0"
    )
    assert (await _greet(stubs, other)).result == "hello Ana!!"
    assert not [path for path in registry.requests[seen:] if path.endswith(".tgz")], "equal locks share one directory"
    assert len(list((tmp_path / "packages").iterdir())) == 1


@pytest.mark.full
async def test_changed_file_is_not_installed(stubs: Stubs, registry: Registry) -> None:
    registry.packages["greeting"]["versions"]["1.0.0"]["dist"]["integrity"] = "sha512-" + "A" * 86 + "=="
    tool = await _create(stubs, greeting="1.0.0", at_tests__accent="2.1.0")
    error = await catch_refusal(_greet(stubs, tool))
    assert (error.reason, error.field) == ("TOOL_REQUIREMENTS_UNMET", "npm_requirements")
    assert "integrity" in error.message.lower(), error.message


@pytest.mark.full
async def test_package_of_a_repository_is_refused(stubs: Stubs) -> None:
    tool = await _create(stubs, GREET, linked="1.0.0")
    assert (await catch_refusal(_greet(stubs, tool))).reason == "TOOL_REQUIREMENTS_UNMET"


@pytest.mark.full
async def test_package_that_does_not_exist_is_named(stubs: Stubs) -> None:
    tool = await _create(stubs, GREET, absent="1.0.0")
    error = await catch_refusal(_greet(stubs, tool))
    assert error.reason == "TOOL_REQUIREMENTS_UNMET"
    assert "absent" in error.message


async def test_without_the_registry_executions_fail_at_once(tmp_path: Path) -> None:
    config = _config(tmp_path, "http://127.0.0.1:9")
    if (await probe_sandbox(config.sandbox)).isolation.level < Level.FULL:
        pytest.skip("this host cannot confine a build")
    async with serve(config) as stubs:
        error = await catch_refusal(_greet(stubs, await _create(stubs, GREET, greeting="1.0.0")))
        assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TOOL_REQUIREMENTS_UNMET")
        assert error.message == "The packages of the tool cannot be installed: the package index cannot be reached."


@pytest.mark.parametrize(
    ("name", "version", "line"),
    [
        ("zod", None, "zod@*"),
        ("zod", "3.25.1", "zod@3.25.1"),
        ("@scope/name", "^1.2 || >=3 <4", "@scope/name@^1.2 || >=3 <4"),
        ("zod", "latest", "zod@latest"),
    ],
)
def test_line_of_a_requirement(name: str, version: str | None, line: str) -> None:
    assert npm_line(Requirement(name, version)) == line


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("Zod", None),
        ("../zod", None),
        ("zod", "git+https://example.test/zod.git"),
        ("zod", "file:../zod"),
        ("zod", "npm:other@1"),
        ("zod", "1.tgz"),
        ("zod", "user/repository"),
        ("zod", "-g"),
        ("--global", "--x"),
        ("@scope", None),
    ],
)
def test_requirement_that_is_no_package_of_the_registry(name: str, version: str | None) -> None:
    with pytest.raises(ValueError, match="is not"):
        npm_line(Requirement(name, version))
