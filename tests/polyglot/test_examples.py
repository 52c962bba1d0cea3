"""Each program of examples/, built by the commands of its README, against a mesh of processes."""

import asyncio
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from mnemesh_testkit.mesh.faulty_proxy import ExecuteThenTimeout, Unavailable
from mnemesh_testkit.mesh.in_process import Mesh, certificates
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.timeouts import scaled

from tests.polyglot.example_builds import ROOT, RUN_SECONDS, CommandError, built, commands, environment, shell
from tests.polyglot.toolchains import TOOLCHAINS, missing, unreachable_registry

ATTEMPTS = 5  # of gRPC, by the service config
SENT_AGAIN = "  the stream broke; the request is sent again\n"

# What a program prints, line by line; lines of deltas are left out.
STORY = r"""
tool water_plants_[0-9a-f]{8} tool-<id>
agent example-<language> agent-<id>
sent again: the same agent
1 user: My name is Ada\. Remember that the key is under the mat\.
2 tool call: memory_insert \{.*"Name: Ada".*\}
3 tool return: memory_insert: .*
  the stream broke; it continues after event 3
4 tool call: archival_memory_insert \{.*"the key is under the mat\.".*\}
5 tool return: archival_memory_insert: .*
6 assistant: .*
I wrote your name, Ada, into core memory .*
I stored this in archival memory: the key is under the mat\.
7 waits for: water_plants_[0-9a-f]{8} \{"room": "kitchen"\}
8 stop REQUIRES_APPROVAL
9 usage \d+ tokens
> approve water_plants_[0-9a-f]{8}
1 approval response
2 tool return: water_plants_[0-9a-f]{8}: The plants of the kitchen have water\.
3 waits for: local_time \{\}
4 stop REQUIRES_APPROVAL
5 usage \d+ tokens
> return local_time: (?P<time>\d\d:\d\d)
1 approval response
2 tool return: local_time: (?P=time)
3 assistant: .*
I wrote your name, Ada, into core memory .*
I stored this in archival memory: the key is under the mat\.
water_plants_[0-9a-f]{8} returned: The plants of the kitchen have water\.
local_time returned: (?P=time)
4 stop END_TURN
5 usage \d+ tokens
core memory human: Name: Ada
core memory persona: I look after a house\.
recall memory: My name is Ada\. Remember that the key is under the mat\.
archival memory: the key is under the mat\.
messages 17 in 5 pages
error NOT_FOUND, reason NOT_FOUND, resource_id=agent-00000000-0000-4000-8000-000000000000
error INVALID_ARGUMENT, reason INVALID_ARGUMENT, field=limit, field limit: .*
deleted agent-<id>
deleted tool-<id>
""".replace("<id>", "[0-9a-f-]{36}").strip()


@pytest.fixture
async def example(language: str) -> Path:
    """The directory of the built program. Without its toolchain or its packages, the test is skipped."""
    if reason := missing(language, environment()["PATH"]):
        pytest.skip(f"the example in {language} was not run: {reason}")
    try:
        return await built(language)
    except PermissionError as error:
        pytest.skip(f"the example in {language} was not built: the cache directory cannot be written: {error}")
    except CommandError as error:
        if line := unreachable_registry(str(error)):
            pytest.skip(f"the example in {language} was not built: its packages cannot be fetched: {line}")
        raise


@pytest.mark.full
@pytest.mark.timeout(scaled(2400))
@pytest.mark.mesh(proxied=["orchestrator"])
@pytest.mark.parametrize("language", TOOLCHAINS)
async def test_example_survives_failures_and_speaks_tls(
    language: str, example: Path, process_mesh: ProcessMesh, tmp_path: Path
) -> None:
    """Lost responses and an unreachable server are repeated, by the service config and by the program; then mutual TLS.

    Two programs run with TLS at the same time. Errors are named in a line.
    """
    proxy = process_mesh.proxies["orchestrator"]
    proxy.inject("CreateAgent", ExecuteThenTimeout(grpc.StatusCode.UNAVAILABLE))
    proxy.inject("SendMessage", Unavailable())
    proxy.inject("StreamRun", Unavailable(), times=ATTEMPTS + 1)
    proxy.inject("AnswerApproval", ExecuteThenTimeout(grpc.StatusCode.UNAVAILABLE), times=ATTEMPTS + 1)
    output = await run(language, example, {"MNEMESH_TARGET": process_mesh.addresses["orchestrator"]})

    assert proxy.calls["CreateAgent"] == 3, "the lost response is repeated, and the program sends the request twice"
    assert proxy.calls["SendMessage"] == 2
    assert proxy.calls["StreamRun"] == ATTEMPTS + 2, "the program repeats what gRPC gave up"
    assert proxy.calls["AnswerApproval"] == ATTEMPTS + 3, "so it does with the first of two answers"
    assert SENT_AGAIN in output
    check(language, output.replace(SENT_AGAIN, ""))
    assert [agent async for agent in process_mesh.client.agents.list()] == []

    issued = certificates(tmp_path / "certificates")
    secure = tmp_path / "secure"
    secure.mkdir()
    async with Mesh(secure, certificates=issued) as mesh:
        variables = {
            "MNEMESH_TARGET": mesh.addresses["orchestrator"],
            "MNEMESH_GRPC_TLS_CA_FILE": str(issued / "ca.crt"),
            "MNEMESH_GRPC_TLS_CERT_FILE": str(issued / "client" / "tls.crt"),
            "MNEMESH_GRPC_TLS_KEY_FILE": str(issued / "client" / "tls.key"),
        }
        for output in await asyncio.gather(*(run(language, example, variables) for _ in range(2))):
            check(language, output)
    await check_errors(language, example)


def test_the_template_of_the_repository_has_the_plugins_of_the_examples() -> None:
    """The templates differ in their paths only."""
    of_examples = [plugin for language in sorted(TOOLCHAINS) for plugin in template(f"examples/{language}", language)]
    of_repository = sorted(template("", ""), key=str)
    assert sorted(of_examples, key=str) == of_repository


def test_the_documented_versions_are_those_of_the_examples() -> None:
    """The page for client authors, the template of Java and its pom.xml name the same versions."""
    page = (ROOT / "docs" / "clients.md").read_text()
    pom = (ROOT / "examples" / "java" / "pom.xml").read_text()
    plugins = re.findall(r"[\w./-]+[@:]v?\d[\d.]+", (ROOT / "buf.gen.yaml").read_text())
    versions = dict(re.split("[@:]", plugin) for plugin in plugins)
    assert f"<protobuf.version>{versions['protoc']}</protobuf.version>" in pom
    assert f"<grpc.version>{versions['protoc-gen-grpc-java']}</grpc.version>" in pom
    for line in re.findall("<(?:protobuf|grpc).version>.*", pom):
        assert line in page
    of_go = [plugin for plugin in plugins if "/protoc-gen-go" in plugin]
    assert len(of_go) == 2
    for plugin in of_go:
        assert plugin in page


def test_a_missing_toolchain_and_an_unreachable_registry_are_recognised(tmp_path: Path) -> None:
    """Both skip a test; an error of the program does not."""
    assert missing("go", str(tmp_path)) == "go is not installed"
    program = tmp_path / "go"
    program.write_text("#!/bin/sh\necho go version go1.19.3 linux/amd64\n")
    program.chmod(0o755)
    assert missing("go", str(tmp_path)) == "go 1.19.3 is too old: 1.25 is required"
    program.write_text("#!/bin/sh\necho go version go1.26.8 linux/amd64\n")
    assert missing("go", str(tmp_path)) == ""
    output = "go: downloading x v1.0.0\ngo: x@v1.0.0: dial tcp: lookup registry: no such host\n"
    assert "no such host" in unreachable_registry(output)
    assert unreachable_registry("./main.go:12:2: undefined: x\n") == ""


def template(directory: str, language: str) -> list[Any]:
    """Returns the plugins of a template, with paths as in the template of the repository."""
    plugins: list[Any] = yaml.safe_load((ROOT / directory / "buf.gen.yaml").read_text())["plugins"]
    for plugin in plugins if language else ():
        plugin["out"] = f"build/{plugin['out']}/{language}"
        for key in plugin.keys() & {"local", "protoc_path"}:
            paths = {word: ROOT / directory / word for word in plugin[key]}
            plugin[key] = [f"{directory}/{word}" if path.is_file() else word for word, path in paths.items()]
    return plugins


async def run(language: str, example: Path, variables: dict[str, str]) -> str:
    """Returns the output of a program that succeeded."""
    return await shell(commands(language, "Run"), example, environment() | variables, RUN_SECONDS)


def check(language: str, output: str) -> None:
    """Compares the output of a program with the story."""
    plain = re.sub(r"\x1b\[\d*m", "", output)
    lines = [line for line in plain.strip().splitlines() if not line.startswith("  delta ")]
    story = STORY.replace("<language>", language).splitlines()
    time = ""
    for expected, line in zip(story, lines, strict=False):
        found = re.fullmatch(expected.replace("(?P=time)", time), line)
        assert found is not None, f"expected {expected!r}, found {line!r} in:\n{plain}"
        time = found.groupdict().get("time") or time
    assert len(lines) == len(story), plain


async def check_errors(language: str, example: Path) -> None:
    """A server that does not exist, and a file that does not exist, are errors without a stack trace."""
    for variables, text in (
        ({"MNEMESH_TARGET": "127.0.0.1:1"}, r"error UNAVAILABLE: \S"),
        ({"MNEMESH_GRPC_TLS_CA_FILE": "/nonexistent/ca.crt"}, r"error .*/nonexistent/ca\.crt"),
    ):
        with pytest.raises(CommandError, match=text) as raised:
            await run(language, example, variables)
        assert "failed with 1:" in str(raised.value)
        assert not re.search(r"Traceback|^\s+at |^panic", str(raised.value), re.MULTILINE)


@pytest.mark.full
@pytest.mark.timeout(scaled(2400))
@pytest.mark.mesh(gateway=True)
async def test_packages_for_web_pages_call_every_protocol_of_the_gateway(process_mesh: ProcessMesh) -> None:
    if reason := missing("typescript", environment()["PATH"]):
        pytest.skip(f"the example for web pages was not run: {reason}")
    try:
        directory = await built("web")
    except CommandError as error:
        if line := unreachable_registry(str(error)):
            pytest.skip(f"the example for web pages was not built: its packages cannot be fetched: {line}")
        raise
    variables = environment() | {"MNEMESH_GATEWAY": f"http://{process_mesh.addresses['gateway']}"}
    output = await shell(commands("web", "Run"), directory, variables, RUN_SECONDS)
    for name in ("connect", "connect binary", "grpc-web"):
        assert re.search(rf"^{name}: accepted .*message.* stop usage$", output, re.MULTILINE), output
        assert f"{name}: human: Name: Ada" in output
        assert re.search(rf"^{name}: error NotFound, .*agent", output, re.MULTILINE), output
