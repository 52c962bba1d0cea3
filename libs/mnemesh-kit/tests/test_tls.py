"""TLS of gRPC servers and channels: who is refused, replaced certificates, and wrong files in one line."""

import asyncio
import logging
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from mnemesh.blocks.v1 import blocks_service_pb2_grpc
from mnemesh_kit.channels import Channels
from mnemesh_kit.config import ConfigError, ServerConfig, TlsSettings
from mnemesh_kit.health import health_status
from mnemesh_kit.tls.credentials import ClientTls, host_of
from mnemesh_kit.tls.server import EXPIRY, ServerTls
from mnemesh_testkit.mesh.in_process import certificates, client_tls, tls_fields
from mnemesh_testkit.timeouts import scaled

from .served_blocks import GET, calling, serving


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificates of another authority."""
    return certificates(tmp_path_factory.mktemp("foreign"))


def copied(directory: Path, target: Path) -> Path:
    shutil.copytree(directory, target, dirs_exist_ok=True)
    return target


async def refused(address: str, tls: TlsSettings | None) -> None:
    async with ClientTls(tls).open(address) as channel:
        assert await health_status(channel, scaled(60)) == "UNAVAILABLE"


async def answered(address: str, tls: TlsSettings | None) -> None:
    async with calling(address, tls=tls) as stub:
        assert (await stub.GetBlock(GET)).block.id == "x"


async def test_both_ends_prove_who_they_are(issued: Path, foreign: Path) -> None:
    tls, other = client_tls(issued), client_tls(foreign)
    own = {"cert_file": tls.cert_file, "key_file": tls.key_file}
    async with serving(**tls_fields(issued, "blocks")) as service:
        await answered(service.address, tls)
        await answered(f"tls://{service.address}", tls)
        await answered(service.address, TlsSettings(ca_file=tls.ca_file, server_name="blocks", **own))
        refusals = {
            "no TLS": None,
            "no certificate": TlsSettings(ca_file=tls.ca_file),
            "a certificate of another authority": TlsSettings(
                ca_file=tls.ca_file, cert_file=other.cert_file, key_file=other.key_file
            ),
            "another authority for the server": TlsSettings(ca_file=other.ca_file, **own),
            "the public authorities": TlsSettings(**own),
            "another name of the server": TlsSettings(ca_file=tls.ca_file, server_name="recall", **own),
        }
        for settings in refusals.values():
            await refused(service.address, settings)
        assert service.servicer.calls == 3


async def test_without_client_authorities_callers_need_no_certificate(issued: Path) -> None:
    tls = tls_fields(issued, "blocks") | {"grpc_tls_client_ca_file": None}
    async with serving(**tls) as service:
        await answered(service.address, TlsSettings(ca_file=str(issued / "ca.crt")))


async def test_channel_with_tls_never_falls_back(issued: Path) -> None:
    async with serving() as service:
        await answered(service.address, None)
        await refused(service.address, client_tls(issued))
        await refused(f"tls://{service.address}", None)
        assert service.servicer.calls == 1


@pytest.mark.parametrize(
    ("target", "configured", "encrypted"),
    [
        ("blocks:50051", True, True),
        ("localhost:50051", True, True),
        ("dns:///blocks:50051", True, True),
        ("unix:/run/blocks", True, False),
        ("blocks:50051", False, False),
        ("tls://blocks:50051", False, True),
    ],
)
def test_which_addresses_are_encrypted(issued: Path, target: str, configured: bool, encrypted: bool) -> None:
    assert ClientTls(client_tls(issued) if configured else None).encrypts(target) is encrypted


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("tls://dns:///blocks:50051", "blocks"),
        ("[::1]:50051", "[::1]"),
        ("blocks", "blocks"),
        ("unix:/run/blocks", "unix:/run/blocks"),
    ],
)
def test_host_of_an_address(target: str, host: str) -> None:
    assert host_of(target) == host


async def test_replaced_certificates_are_used_without_a_restart(issued: Path, foreign: Path, tmp_path: Path) -> None:
    """By the next handshake of the server, and by the next call of a channel. Open calls continue."""
    files, released, began = copied(issued, tmp_path / "files"), asyncio.Event(), asyncio.Event()

    async def wait_once(request: Any) -> str:
        if not began.is_set():
            began.set()
            await released.wait()
        return str(request.block_id)

    async with serving(**tls_fields(files, "blocks")) as service:
        channels = Channels(tls=ClientTls(client_tls(files), recheck_seconds=0))
        stub = blocks_service_pb2_grpc.BlockServiceStub(channels.channel(service.address))
        service.servicer.respond = wait_once
        open_call = asyncio.create_task(stub.GetBlock(GET))
        await began.wait()
        copied(foreign, files)
        assert (await stub.GetBlock(GET)).block.id == "x"
        await refused(service.address, client_tls(issued))
        await answered(service.address, client_tls(foreign))
        released.set()
        assert (await open_call).block.id == "x"
        await channels.close()


async def test_wrong_replacement_is_reported_and_not_used(issued: Path, foreign: Path, tmp_path: Path) -> None:
    files = copied(issued, tmp_path / "files")
    async with serving(**tls_fields(files, "blocks")) as service:
        shutil.copy(foreign / "blocks" / "tls.key", files / "blocks" / "tls.key")
        with structlog.testing.capture_logs() as logs:
            await answered(service.address, client_tls(issued))
            await answered(service.address, client_tls(issued))
        failures = [entry["error"] for entry in logs if entry["event"] == "certificate_reload_failed"]
        assert len(failures) == 1
        assert "MNEMESH_GRPC_TLS_KEY_FILE" in failures[0]
        shutil.copy(foreign / "blocks" / "tls.crt", files / "blocks" / "tls.crt")
        await refused(service.address, client_tls(issued))


async def test_start_reports_certificates_and_when_they_expire(issued: Path, tmp_path: Path) -> None:
    files = copied(issued, tmp_path / "files")
    key_file = files / "blocks" / "tls.key"
    key_file.chmod(0o644)
    with structlog.testing.capture_logs() as logs:
        async with serving(**tls_fields(files, "blocks")):
            (family,) = EXPIRY.families()
    assert 0 < family.samples[0].value <= 86_400
    events = {entry["event"]: entry for entry in logs if entry.get("path", "").startswith(str(files))}
    loaded, readable = events["certificate_loaded"], events["key_file_readable_by_every_user"]
    assert (loaded["days_left"], loaded["names"][0], loaded["log_level"]) == (1.0, "blocks", "info")
    assert readable["path"] == str(key_file)


async def test_server_without_tls_that_others_can_reach_is_reported(tmp_path: Path) -> None:
    key_file = tmp_path / "keys"
    key_file.write_text("k" * 32)
    with structlog.testing.capture_logs() as logs:
        async with serving(host="0.0.0.0", auth_key_file=str(key_file)):
            pass
    assert [entry["host"] for entry in logs if entry["event"] == "listening_without_tls"] == ["0.0.0.0"]


@pytest.mark.parametrize(
    ("target", "warned"), [("mesh.example.com:50050", True), ("localhost:1", False), ("tls://mesh:1", False)]
)
async def test_tokens_without_tls_are_reported(target: str, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    channels = Channels(token="secret")
    with caplog.at_level(logging.WARNING):
        channels.channel(target)
        channels.channel(target)
    assert len([record for record in caplog.records if "without TLS" in record.message]) == int(warned)
    assert "secret" not in caplog.text
    await channels.close()


def _sign(directory: Path, begins: timedelta, ends: timedelta) -> TlsSettings:
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([]), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now + begins, now + ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    (directory / "crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (directory / "key").write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
    (directory / "locked").write_bytes(key.private_bytes(*form, serialization.BestAvailableEncryption(b"password")))
    return TlsSettings(cert_file=str(directory / "crt"), key_file=str(directory / "key"))


DAY = timedelta(days=1)
WRONG: dict[str, tuple[Callable[[Path], TlsSettings], str]] = {
    "key missing": (lambda _: TlsSettings(cert_file="a"), r"^MNEMESH_GRPC_TLS_KEY_FILE must be set with \S+_CERT_FILE"),
    "certificate missing": (lambda _: TlsSettings(key_file="a"), "^MNEMESH_GRPC_TLS_CERT_FILE must be set with"),
    "client authority alone": (lambda _: TlsSettings(client_ca_file="a"), "^MNEMESH_GRPC_TLS_CERT_FILE must be set"),
    "no such file": (
        lambda place: TlsSettings(cert_file=str(place / "none"), key_file="a"),
        r"^MNEMESH_GRPC_TLS_CERT_FILE \S+/none cannot be read: No such file or directory\.$",
    ),
    "a directory": (
        lambda place: TlsSettings(cert_file=str(_sign(place, -DAY, DAY).cert_file), key_file=str(place)),
        r"^MNEMESH_GRPC_TLS_KEY_FILE \S+ cannot be read: Is a directory\.$",
    ),
    "key as certificate": (
        lambda place: TlsSettings(cert_file=_sign(place, -DAY, DAY).key_file, key_file=str(place / "key")),
        r"^MNEMESH_GRPC_TLS_CERT_FILE \S+/key contains no certificate in PEM form\.$",
    ),
    "certificate as key": (
        lambda place: TlsSettings(cert_file=_sign(place, -DAY, DAY).cert_file, key_file=str(place / "crt")),
        r"^MNEMESH_GRPC_TLS_KEY_FILE \S+/crt contains no private key in PEM form\.$",
    ),
    "password": (
        lambda place: TlsSettings(cert_file=_sign(place, -DAY, DAY).cert_file, key_file=str(place / "locked")),
        r"^MNEMESH_GRPC_TLS_KEY_FILE \S+/locked is encrypted\. Use a key without a password\.$",
    ),
    "expired": (
        lambda place: _sign(place, -2 * DAY, -DAY),
        r"^MNEMESH_GRPC_TLS_CERT_FILE \S+/crt has expired on .* UTC\. Replace it\.$",
    ),
    "not yet valid": (
        lambda place: _sign(place, DAY, 2 * DAY),
        r"^MNEMESH_GRPC_TLS_CERT_FILE \S+/crt is not valid before .* UTC\. Replace it\.$",
    ),
    "wrong authority": (
        lambda place: TlsSettings(
            cert_file=_sign(place, -DAY, DAY).cert_file, key_file=str(place / "key"), client_ca_file=str(place / "key")
        ),
        r"^MNEMESH_GRPC_TLS_CLIENT_CA_FILE \S+/key contains no certificate in PEM form\.$",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_file_is_one_line_that_names_the_setting(case: str, tmp_path: Path) -> None:
    settings, message = WRONG[case]
    with pytest.raises(ConfigError, match=message):
        ServerTls.of(settings(tmp_path))


def test_key_of_another_certificate_is_refused(issued: Path) -> None:
    own, other = tls_fields(issued, "blocks"), tls_fields(issued, "recall")
    config = ServerConfig(**own | {"grpc_tls_key_file": other["grpc_tls_key_file"]})
    for create in (ServerTls, ClientTls):
        with pytest.raises(ConfigError, match=r"recall/tls\.key is not the key of the certificate \S+blocks/tls\.crt"):
            create(TlsSettings.of(config))


def test_expired_authorities_are_refused(tmp_path: Path) -> None:
    _sign(tmp_path, -2 * DAY, -DAY)
    with pytest.raises(ConfigError, match=r"MNEMESH_GRPC_TLS_CA_FILE .* expired certificates only"):
        ClientTls(TlsSettings(ca_file=str(tmp_path / "crt")))


async def test_settings_of_a_client_are_its_own_or_those_of_all(issued: Path) -> None:
    env = {"MNEMESH_GRPC_TLS_CA_FILE": "a", "MNEMESH_GRPC_TLS_CERT_FILE": "b", "MNEMESH_CLIENT_GRPC_TLS_CERT_FILE": "c"}
    assert TlsSettings.from_env(env) == TlsSettings(ca_file="a", cert_file="c")
    assert TlsSettings.from_env(env, "blocks") == TlsSettings(ca_file="a", cert_file="b")
