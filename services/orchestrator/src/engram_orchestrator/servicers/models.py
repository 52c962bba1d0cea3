"""engram.agents.v1.ModelService."""

from typing import Any, Final

import grpc
from engram.agents.v1 import models_pb2 as pb
from engram.agents.v1 import models_service_pb2 as rpc
from engram.agents.v1 import models_service_pb2_grpc

from engram_orchestrator.llm.registry import Providers
from engram_orchestrator.model.models import ModelInfo

Context = grpc.aio.ServicerContext[Any, Any]

_APIS: Final = {
    "openai_chat": pb.MODEL_API_OPENAI_CHAT,
    "anthropic": pb.MODEL_API_ANTHROPIC_MESSAGES,
    "rehearsal": pb.MODEL_API_REHEARSAL,
}


class ModelsServicer(models_service_pb2_grpc.ModelServiceServicer):
    """The models that this server was configured with."""

    def __init__(self, models: Providers) -> None:
        self._models = models

    async def GetModel(self, request: rpc.GetModelRequest, context: Context) -> rpc.GetModelResponse:
        """What is known of a model; an empty handle means the one that a new agent gets."""
        handle = request.handle or await self._models.default_handle()
        info, _ = self._models.resolve(handle)
        return rpc.GetModelResponse(model=_model(info))


def _model(info: ModelInfo) -> pb.Model:
    return pb.Model(
        handle=info.handle,
        provider=info.provider,
        provider_model=info.provider_model,
        display_name=info.provider_model,
        api=_APIS[info.api],
        provider_type=info.provider,
        provider_category=pb.PROVIDER_CATEGORY_BASE,
        endpoint=info.endpoint,
        context_window=info.context_window,
        max_output_tokens=info.defaults.max_output_tokens or 0,
    )
