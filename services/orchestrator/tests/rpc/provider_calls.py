"""Calls about providers, against a service of its own and a fake provider."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemesh.agents.v1 import models_pb2 as pb
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh.agents.v1.models_service_pb2_grpc import ModelServiceStub
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal
from mnemesh_kit.channels import Channels
from mnemesh_kit.server import RunningServer
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.wiring import assemble
from mnemesh_testkit.fakes.openai import FakeOpenAI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

if TYPE_CHECKING:
    from mnemesh.agents.v1.models_service_pb2_grpc import ModelServiceAsyncStub


PATIENCE = 60.0


KEY = "canary/8f3e71-not=a+known_form"


OTHER = Principal("org-00000000-0000-4000-8000-00000000000b", DEFAULT_PRINCIPAL.subject_id)


@asynccontextmanager
async def served(config: Config) -> "AsyncIterator[ModelServiceAsyncStub]":
    """Yields a stub of a service whose other services are unreachable."""
    server = RunningServer()
    address = await server.start(await assemble(config, clock=FrozenClock()), config)
    channels = Channels(deadline=PATIENCE, auth_key_file=config.auth_key_file)  # the first call imports the SDKs
    try:
        yield ModelServiceStub(channels.channel(address))
    finally:
        await channels.close()
        await server.stop()


def settings(directory: Path, **fields: Any) -> Config:
    unreachable = f"unix:{directory / 'unreachable'}"
    targets = {f"{service}_target": unreachable for service in ("blocks", "recall", "archival", "tools")}
    return Config(**{"port": 0, "data_dir": str(directory), "shutdown_grace_seconds": 0, **targets, **fields})


class Guarded(FakeOpenAI):
    """Lists its models for requests with the key, and records a key that it refuses."""

    def __init__(self, key: str = KEY, **options: Any) -> None:
        super().__init__(**options)
        self.key = key
        self.heard: list[dict[str, str]] = []

    async def _list_models(self, request: Request) -> Response:
        self.heard.append(dict(request.headers))
        given = request.headers.get("authorization", "")
        if given != f"Bearer {self.key}":
            words = f"{given.removeprefix('Bearer ')} is not the key; you sent {given!r}"
            return JSONResponse({"error": {"message": words, "code": "invalid_api_key"}}, 401)
        return await super()._list_models(request)


def a_provider(fake: FakeOpenAI, name: str = "mine", **fields: Any) -> pb.Provider:
    return pb.Provider(**{"name": name, "type": "vllm", "base_url": fake.base_url, **fields})


def a_key(key: str = KEY) -> pb.ProviderCredentials:
    return pb.ProviderCredentials(api_key=key)


async def create(models: "ModelServiceAsyncStub", provider: pb.Provider, key: str = KEY, request_id: str = "") -> Any:
    request = rpc.CreateProviderRequest(provider=provider, credentials=a_key(key), request_id=request_id)
    return (await models.CreateProvider(request)).provider


async def handles(models: "ModelServiceAsyncStub", **filters: Any) -> list[str]:
    return [model.handle for model in (await models.ListModels(rpc.ListModelsRequest(**filters))).models]


async def named(models: "ModelServiceAsyncStub", handle: str) -> pb.Model:
    return (await models.GetModel(rpc.GetModelRequest(handle=handle))).model
