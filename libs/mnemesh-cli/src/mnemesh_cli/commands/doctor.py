"""`mnemesh doctor`: checks this machine's mesh, or the mesh at a target."""

import asyncio
import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import typer
from mnemesh.agents.v1 import models_pb2
from mnemesh_cli.commands.first_agent import REHEARSAL_MODEL
from mnemesh_cli.commands.version import CLIENT_VERSION, service_version
from mnemesh_cli.connection import Connection
from mnemesh_cli.display.error_text import error_text
from mnemesh_cli.display.records import print_json
from mnemesh_cli.display.terminal import is_json, print_labelled
from mnemesh_cli.options import DataDirOption
from mnemesh_cli.supervisor import health
from mnemesh_cli.supervisor.config import MeshConfig, lock_holder, mesh_config, service_module
from mnemesh_cli.supervisor.health import handshake_problem
from mnemesh_client.addresses import Addresses
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.config import TLS_PREFIX, StartupError, TlsSettings
from mnemesh_kit.errors import DeadlineExceeded, MnemeshError, Unavailable
from mnemesh_kit.network import proxies_of
from mnemesh_kit.services import SERVICE_NAMES
from mnemesh_kit.tls.certificates import read_certificate
from mnemesh_kit.tls.credentials import ClientTls
from rich.text import Text

_OLDEST_PYTHON: Final = (3, 11)
_NEWEST_PYTHON: Final = (3, 14)
_MODEL_VARIABLES: Final = (
    "MNEMESH_MODEL",
    "OPENAI_BASE_URL",
    "OPENAI_API_KEY",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_API_KEY",
)
_MIN_FREE_BYTES: Final = 500 * 1024 * 1024
_LEVELS: Final = ("none", "minimal", "restricted", "full")
_SANDBOXES: Final = {"tools": ("sandbox", "custom tools are refused"), "files": ("parsers", "documents are not parsed")}
"""The label of each service's sandbox, and what the service refuses without enough isolation."""
_PROVIDER_SECONDS: Final = 10.0
_BOUNDS: Final = ("memory", "processes", "disk", "network")
_OFFLINE_EMBEDDER: Final = "mnemesh/wordllama-256"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `state` is "ok", "note" or "problem"."""

    subject: str
    text: str
    state: str = "ok"

    @property
    def is_problem(self) -> bool:
        """True if the operator has to act."""
        return self.state == "problem"

    @property
    def mark(self) -> str:
        """The state as a symbol."""
        return {"ok": "✓", "note": "·", "problem": "✗"}[self.state]

    @property
    def style(self) -> str:
        """The state as a colour."""
        return {"ok": "", "note": "dim", "problem": "red"}[self.state]


def doctor(context: typer.Context, data_dir: DataDirOption = None) -> None:
    """Check Python, disk, certificates, services and their versions, providers, the model and the sandbox.

    The exit code is 1 if there is a problem.
    """
    findings = asyncio.run(examine(mesh_config(data_dir), context.obj, os.environ))
    for finding in findings:
        if is_json.get():
            print_json({"subject": finding.subject, "state": finding.state, "text": finding.text})
            continue
        print_labelled(Text(f"{finding.mark} {finding.subject:13}", finding.style), Text(finding.text, finding.style))
    raise typer.Exit(int(any(finding.is_problem for finding in findings)))


async def examine(config: MeshConfig, connection: Connection, env: Mapping[str, str]) -> list[Finding]:
    """Runs all checks, on this machine's mesh or on the mesh that `connection` names."""
    findings = [_check_python(), _check_data_dir(config), _check_embedder(config), *_check_proxies(env)]
    findings += [finding for name in SERVICE_NAMES if (finding := _check_installed(name)) is not None]
    findings.append(_check_tls(config.tls))
    if findings[-1].is_problem:
        return findings
    addresses = dict(connection.addresses(config).items())
    checks = (health.service_status(name, address, tls=config.tls) for name, address in addresses.items())
    states = await asyncio.gather(*checks)
    running = any(state == "SERVING" for state in states)
    async with connection.open(Addresses(**addresses)) as mnemesh:
        for (name, address), state in zip(addresses.items(), states, strict=True):
            if state == "SERVING":
                findings.append(await _check_version(mnemesh, name, address))
                findings += await _check_sandbox(mnemesh, name) if name in _SANDBOXES else []
            else:
                problem = await handshake_problem(name, address, config.tls)
                findings.append(
                    _diagnose(name, address, state, running) if problem is None else Finding(name, problem, "problem")
                )
        findings.append(await _check_model(mnemesh, env))
        findings += await check_providers(mnemesh)
    return findings


def how_to_change(model: str) -> str:
    """Returns a hint how to use another model."""
    if model == REHEARSAL_MODEL:
        return "no LLM; set OPENAI_API_KEY, ANTHROPIC_API_KEY or OPENAI_BASE_URL to use one"
    return "change it with MNEMESH_MODEL=provider/model"


def _check_python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if not _OLDEST_PYTHON <= sys.version_info[:2] <= _NEWEST_PYTHON:
        return Finding("python", f"{version}; mnemesh requires Python 3.11 to 3.14", "problem")
    return Finding("python", f"{version} at {sys.executable}")


def _check_data_dir(config: MeshConfig) -> Finding:
    directory = config.data_path
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        text = f"{directory} cannot be written. Choose another with MNEMESH_DATA_DIR."
        return Finding("data", text, "problem")
    free = shutil.disk_usage(existing).free
    if free < _MIN_FREE_BYTES:
        return Finding("data", f"{directory} has only {free // 2**20} MB of free space", "problem")
    holder = lock_holder(directory)
    use = f"in use by pid {holder.pid}" if holder else "not in use"
    return Finding("data", f"{directory}, {use}, {free // 2**30} GB free")


async def _check_model(mnemesh: Mnemesh, env: Mapping[str, str]) -> Finding:
    try:
        model = (await mnemesh.models.default()).handle
    except Unavailable:
        present = [name for name in _MODEL_VARIABLES if env.get(name)]
        return Finding("model", f"set by {', '.join(present)}" if present else REHEARSAL_MODEL, "note")
    except MnemeshError as error:
        return Finding("model", error_text(error), "problem")
    return Finding("model", f"{model} ({how_to_change(model)})")


async def check_providers(mnemesh: Mnemesh) -> list[Finding]:
    """Asks each provider for its models, all at once, and returns what they answered."""
    try:
        providers = [provider async for provider in mnemesh.providers.list() if not provider.disabled]
    except MnemeshError:
        return []  # the orchestrator has its own finding
    return await asyncio.gather(*(_check_provider(mnemesh, each) for each in providers))


async def _check_provider(mnemesh: Mnemesh, provider: models_pb2.Provider) -> Finding:
    subject = f"provider {provider.name}"
    try:
        models = await asyncio.wait_for(mnemesh.providers.check(provider.id), _PROVIDER_SECONDS)
    except (TimeoutError, DeadlineExceeded):
        return Finding(subject, "did not list its models in time", "problem")
    except MnemeshError as error:
        # Some servers have no list of models. Nothing else can be asked without a cost.
        state = "note" if error.reason == "PROVIDER_BAD_ANSWER" else "problem"
        return Finding(subject, error_text(error).removeprefix(f"{provider.name} "), state)
    return Finding(subject, f"answers; models: {len(models)}")


def _check_proxies(env: Mapping[str, str]) -> list[Finding]:
    names = proxies_of(env)
    text = f"{', '.join(names)}: for model providers and other hosts, never for this machine and the mesh"
    return [Finding("proxy", text, "note")] if names else []


def _check_embedder(config: MeshConfig) -> Finding:
    if config.embedder == _OFFLINE_EMBEDDER and importlib.util.find_spec("wordllama") is None:
        return Finding("embedder", f"{config.embedder} is not installed", "problem")
    return Finding("embedder", config.embedder)


def _check_installed(name: str) -> Finding | None:
    try:
        service_module(name)
    except StartupError as error:
        return Finding(name, str(error), "problem")
    return None


def _check_tls(settings: TlsSettings) -> Finding:
    if not settings.is_configured:
        return Finding("tls", "gRPC connections are not encrypted (MNEMESH_GRPC_TLS_CA_FILE)", "note")
    try:
        ClientTls(settings)
        if settings.cert_file is None:
            return Finding("tls", "gRPC connections are encrypted")
        certificate = read_certificate(settings.cert_file, settings.key_file, TLS_PREFIX)
    except StartupError as error:
        return Finding("tls", str(error), "problem")
    state = "problem" if certificate.is_ending else "ok"
    text = f"gRPC connections are encrypted; the certificate {settings.cert_file} expires in"
    return Finding("tls", f"{text} {certificate.days_left:.0f} days", state)


async def _check_version(mnemesh: Mnemesh, name: str, address: str) -> Finding:
    try:
        version = await service_version(mnemesh, name)
    except MnemeshError as error:
        return Finding(name, f"{address} is serving, but {error_text(error)}", "problem")
    if version != CLIENT_VERSION:
        return Finding(name, f"{address} is serving version {version}; this client is {CLIENT_VERSION}", "note")
    return Finding(name, f"{address} is serving version {version}")


async def _check_sandbox(mnemesh: Mnemesh, name: str) -> list[Finding]:
    """Returns the finding on the level and the bounds of a service's sandbox, if it reports them."""
    subject, refused = _SANDBOXES[name]
    try:
        properties = (await mnemesh.server_info(name)).properties
    except MnemeshError:
        return []
    level, minimum = properties.get("sandbox.level"), properties.get("sandbox.minimum")
    if level is None and minimum in _LEVELS:
        return [Finding(subject, f"is opened with the first document; {refused} below level {minimum}", "note")]
    if level not in _LEVELS or minimum not in _LEVELS:
        return []
    bounds = [f"{name}: {properties[f'sandbox.{name}']}" for name in _BOUNDS if f"sandbox.{name}" in properties]
    text = f"level {level}; {'; '.join(bounds)}"
    if _LEVELS.index(level) < _LEVELS.index(minimum):
        text = f"{text}. {refused[0].upper()}{refused[1:]} below level {minimum}."
        return [Finding(subject, text, "problem")]
    return [Finding(subject, text, "note" if level == "minimal" else "ok")]


def _diagnose(name: str, address: str, state: str, running: bool) -> Finding:
    """Returns the finding for a service that is not serving. `running` is whether another one is."""
    if state != "UNAVAILABLE":
        text = health.HEALTH_TEXTS.get(state, state.lower().replace("_", " "))
        return Finding(name, f"{address} answers that it is {text}", "problem")
    if running:
        return Finding(name, f"{address} does not answer. See the log of the service.", "problem")
    if _accepts_connections(address):
        return Finding(name, f"{address} is in use by a program other than mnemesh", "problem")
    return Finding(name, f"{address} does not answer. Start a mesh with `mnemesh up`.", "problem")


def _accepts_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
            return True
    except (OSError, ValueError):
        return False
