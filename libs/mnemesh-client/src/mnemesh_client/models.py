"""Models: the models of the mesh, and its default model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from google.protobuf import field_mask_pb2
from mnemesh.agents.v1 import models_pb2, models_service_pb2, models_service_pb2_grpc

from mnemesh_client.inputs import present_fields
from mnemesh_client.paging import paginate
from mnemesh_client.transport import Channel


class ModelsClient:
    """Calls of ModelService about models, as `client.models`. Errors: NotFound MODEL_UNKNOWN."""

    def __init__(self, channel: Channel) -> None:
        self.stub = models_service_pb2_grpc.ModelServiceStub(channel)

    async def get(self, handle: str) -> models_pb2.Model:
        """Returns a model by its handle, "provider/model"."""
        return (await self.stub.GetModel(models_service_pb2.GetModelRequest(handle=handle))).model

    async def default(self) -> models_pb2.Model:
        """Returns the default model: that of agents created without a model."""
        return await self.get("")

    def list(self, *, limit: int | None = None) -> AsyncIterator[models_pb2.Model]:
        """Yields the available models, in order of their handles."""
        return paginate(self.stub.ListModels, models_service_pb2.ListModelsRequest(), "models", limit)

    async def update(self, handle: str, **fields: Any) -> models_pb2.Model:
        """Updates fields of a model that the operator may set, such as `display_name`. None clears a field."""
        request = models_service_pb2.UpdateModelRequest(
            model=models_pb2.Model(handle=handle, **present_fields(**fields)),
            update_mask=field_mask_pb2.FieldMask(paths=list(fields)),
        )
        return (await self.stub.UpdateModel(request)).model

    def embedding_models(
        self, *, providers: Sequence[str] = (), handle: str | None = None, limit: int | None = None
    ) -> AsyncIterator[models_pb2.EmbeddingModel]:
        """Yields the embedding models, of these providers or with this handle if they are set."""
        request = models_service_pb2.ListEmbeddingModelsRequest(providers=providers, handle=handle)
        return paginate(self.stub.ListEmbeddingModels, request, "models", limit)
