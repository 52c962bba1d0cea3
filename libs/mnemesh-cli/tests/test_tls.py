"""`mnemesh certs create`, and what a client and `mnemesh doctor` say about TLS."""

import asyncio
import os
import shutil
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from mnemesh_cli.certificates import create_certificates
from mnemesh_cli.commands.doctor import Finding, examine
from mnemesh_cli.connection import Connection
from mnemesh_cli.display.error_text import error_text
from mnemesh_cli.supervisor.config import MeshConfig, service_environment
from mnemesh_cli.supervisor.health import handshake_problem
from mnemesh_cli.supervisor.supervisor import Supervisor
from mnemesh_client import Addresses, Mnemesh, TlsSettings
from mnemesh_kit.config import ServerConfig, StartupError
from mnemesh_kit.errors import Unavailable
from mnemesh_kit.server import Assembly, RunningServer
from mnemesh_kit.services import SERVICE_NAMES, service
from mnemesh_testkit.mesh.in_process import certificates, client_tls, tls_environment, tls_fields


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("of a mesh"))


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[str]:
    server = RunningServer()
    try:
        assembly = Assembly(name="blocks", service_names=service("blocks").proto_services)
        yield await server.start(assembly, ServerConfig(shutdown_grace_seconds=0, **settings))
    finally:
        await server.stop()


async def run(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mnemesh_cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith("MNEMESH_")},
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def names(file: Path) -> list[str]:
    found = x509.load_pem_x509_certificate(file.read_bytes()).extensions
    return [str(name.value) for name in found.get_extension_for_class(x509.SubjectAlternativeName).value]


async def test_certificates_are_created_for_their_owner_and_renewed(tmp_path: Path) -> None:
    directory = tmp_path / "certs"
    code, out, err = await run("certs", "create", str(directory), "--host", "mesh.example.com", "--host", "10.0.0.7")
    assert (code, err) == (0, "")
    assert f"set -a; . {directory}/mnemesh.env; set +a" in out
    assert {path.name for path in directory.iterdir()} == {*SERVICE_NAMES, "client", "ca.crt", "ca.key", "mnemesh.env"}
    local = ["localhost", "127.0.0.1", "::1", "mesh.example.com", "10.0.0.7"]
    assert names(directory / "blocks" / "tls.crt") == ["blocks", *local]
    others = [
        path for path in directory.rglob("*") if path.name != "ca.crt" and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert others == []

    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    create_certificates(directory, days=1)
    same = {path.relative_to(directory).as_posix() for path, content in before.items() if path.read_bytes() == content}
    authority = {"ca.crt", "ca.key", "mnemesh.env", *(f"{name}/ca.crt" for name in (*SERVICE_NAMES, "client"))}
    assert same == authority


def _without_key(directory: Path) -> None:
    (directory / "ca.key").unlink()


def _with_foreign_key(directory: Path) -> None:
    shutil.copy(directory / "blocks" / "tls.key", directory / "ca.key")


def _with_broken_authority(directory: Path) -> None:
    (directory / "ca.crt").write_text("x")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without_key, r"ca\.key is missing\. Restore it"),
        (_with_foreign_key, r"ca\.key is not the key of \S+ca\.crt\."),
        (_with_broken_authority, "The authority in .* cannot be read"),
    ],
)
def test_unusable_authority_changes_nothing(tmp_path: Path, damage: Any, message: str) -> None:
    create_certificates(tmp_path, days=1)
    damage(tmp_path)
    before = (tmp_path / "blocks" / "tls.crt").read_bytes()
    with pytest.raises(StartupError, match=message):
        create_certificates(tmp_path, days=1)
    assert (tmp_path / "blocks" / "tls.crt").read_bytes() == before


def test_wrong_host_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"--host 'bücher.example' is neither a host name nor an address"):
        create_certificates(tmp_path, days=1, hosts=["bücher.example"])


async def test_handshake_problem_names_the_cause(issued: Path, tmp_path: Path) -> None:
    tls, foreign = client_tls(issued), client_tls(certificates(tmp_path))
    own = {"cert_file": tls.cert_file, "key_file": tls.key_file}
    cases = [
        (tls, None),
        (TlsSettings(), "expects TLS. Set MNEMESH_GRPC_TLS_CA_FILE."),
        (TlsSettings(ca_file=tls.ca_file), "does not accept the certificate of this client."),
        (
            TlsSettings(ca_file=tls.ca_file, cert_file=foreign.cert_file, key_file=foreign.key_file),
            "does not accept the certificate of this client. Check MNEMESH_GRPC_TLS_CERT_FILE.",
        ),
        (TlsSettings(ca_file=foreign.ca_file, **own), "has a certificate that is not accepted: "),
        (TlsSettings(ca_file=tls.ca_file, server_name="recall", **own), "not valid for 'recall'. Check"),
    ]
    async with serving(**tls_fields(issued, "blocks")) as address:
        for settings, text in cases:
            problem = await handshake_problem("blocks", address, settings)
            assert (problem is None) if text is None else (text in (problem or "")), (text, problem)
        assert await handshake_problem("gateway", address, TlsSettings()) is None
    assert await handshake_problem("blocks", address, tls) is None, "nothing answers"
    async with serving() as plain:
        assert "does not use TLS" in (await handshake_problem("blocks", plain, tls) or "")


async def test_doctor_says_why_a_service_cannot_be_reached(
    issued: Path, tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SERVICE_NAMES:
        monkeypatch.setenv(f"MNEMESH_{name.upper()}_TARGET", f"127.0.0.1:{closed_port}")
    monkeypatch.setenv("MNEMESH_DATA_DIR", str(tmp_path))

    async def findings() -> dict[str, Finding]:
        connection, env = Connection(f"127.0.0.1:{closed_port}"), {"https_proxy": "http://proxy.example:3128"}
        return {finding.subject: finding for finding in await examine(MeshConfig.from_env(), connection, env)}

    async with serving(**tls_fields(issued, "blocks")) as address:
        monkeypatch.setenv("MNEMESH_BLOCKS_TARGET", address)
        plain = await findings()
        assert (plain["tls"].state, plain["blocks"].state) == ("note", "problem")
        assert (plain["proxy"].state, plain["proxy"].text.split(":")[0]) == ("note", "https_proxy")
        assert "expects TLS" in plain["blocks"].text
        for name, value in tls_environment(issued).items():
            monkeypatch.setenv(name, value)
        good = await findings()
        assert good["blocks"].text.startswith(f"{address} is serving version")
        assert (good["tls"].state, "expires in 1 days" in good["tls"].text) == ("ok", True)
        monkeypatch.setenv("MNEMESH_GRPC_TLS_CA_FILE", "/nowhere")
        missing = await findings()
        assert missing["tls"].is_problem
        assert "MNEMESH_GRPC_TLS_CA_FILE /nowhere cannot be read" in missing["tls"].text


def test_scheme_applies_to_the_addresses_that_follow_from_it() -> None:
    addresses = Addresses.resolve("tls://mesh.example.com", recall="recall:1", env={"MNEMESH_TOOLS_PORT": "7"})
    assert dict(addresses.items()) == {
        "gateway": "mesh.example.com:8283",
        "orchestrator": "tls://mesh.example.com:50050",
        "blocks": "tls://mesh.example.com:50050",
        "recall": "recall:1",
        "archival": "tls://mesh.example.com:50050",
        "tools": "tls://mesh.example.com:7",
        "files": "tls://mesh.example.com:50050",
    }


def test_each_service_of_a_mesh_gets_its_own_certificate_only(issued: Path) -> None:
    env = tls_environment(issued)
    config = MeshConfig.from_env(env)
    assert config.tls == client_tls(issued)
    passed = {name: value for name, value in service_environment("blocks", config, env).items() if "TLS" in name}
    fields = tls_fields(issued, "blocks")
    assert set(passed.values()) == set(fields.values())
    assert not any("CLIENT_GRPC" in name or "RECALL" in name for name in passed)


async def test_mesh_whose_services_no_one_can_verify_does_not_start(issued: Path, tmp_path: Path) -> None:
    tls = client_tls(issued)
    config = MeshConfig(data_dir=str(tmp_path), tls=TlsSettings(cert_file=tls.cert_file, key_file=tls.key_file))
    with pytest.raises(StartupError, match="MNEMESH_GRPC_TLS_CA_FILE must be set with MNEMESH_GRPC_TLS_CERT_FILE"):
        await Supervisor(config, lambda _: None, ("blocks",)).start()


async def test_mesh_whose_certificates_are_not_accepted_does_not_start(
    issued: Path, tmp_path: Path, reserve_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in tls_environment(issued).items():
        monkeypatch.setenv(name, value)
    ports = {name: reserve_port() for name in SERVICE_NAMES}
    config = MeshConfig(data_dir=str(tmp_path), ports=ports, tls=client_tls(certificates(tmp_path)))
    supervisor = Supervisor(config, lambda _: None, ("blocks",))
    with pytest.raises(StartupError) as refused:
        await supervisor.start()
    assert str(refused.value).startswith(f"blocks: {config.address('blocks')} has a certificate that is not accepted: ")
    assert supervisor.services == {}


async def test_refused_handshake_is_not_reported_as_a_stopped_mesh(issued: Path) -> None:
    tls = client_tls(issued)
    unaware = TlsSettings(cert_file=tls.cert_file, key_file=tls.key_file)
    async with (
        serving(**tls_fields(issued, "blocks")) as address,
        Mnemesh(blocks=address, tls=unaware) as mnemesh,
    ):
        with pytest.raises(Unavailable) as refused:
            await mnemesh.blocks.get("block-1")
    assert error_text(refused.value).startswith("The mesh does not accept the TLS connection. Check MNEMESH_GRPC_TLS_")
