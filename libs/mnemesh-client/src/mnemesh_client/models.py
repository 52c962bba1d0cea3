"""Models: which ones the mesh can ask, and which one it takes by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mnemesh.agents.v1 import models_pb2, models_service_pb2, models_service_pb2_grpc
from mnemesh_kit.channels import Channel

from mnemesh_client.paging import every


class ModelsClient:
    """`e.models`. Errors: NotFound MODEL_UNKNOWN."""

    def __init__(self, channel: Channel) -> None:
        self.stub = models_service_pb2_grpc.ModelServiceStub(channel)

    async def get(self, handle: str) -> models_pb2.Model:
        """What is known of a model, "provider/model"."""
        return (await self.stub.GetModel(models_service_pb2.GetModelRequest(handle=handle))).model

    async def default(self) -> models_pb2.Model:
        """The model of agents that name none."""
        return await self.get("")

    def list(self, *, limit: int | None = None) -> AsyncIterator[models_pb2.Model]:
        """The models on offer, by handle."""
        return every(self.stub.ListModels, models_service_pb2.ListModelsRequest(), "models", limit)
