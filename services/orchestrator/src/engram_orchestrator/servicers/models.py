"""engram.agents.v1.ModelService."""

from collections.abc import Callable
from typing import Any, Final

import grpc
from engram.agents.v1 import models_pb2 as pb
from engram.agents.v1 import models_service_pb2 as rpc
from engram.agents.v1 import models_service_pb2_grpc
from engram_kit.errors import InvalidArgument
from engram_kit.paging import next_page_token, page_of, page_query

from engram_orchestrator.convert.settings import present, require_known, require_plain
from engram_orchestrator.llm.dialects import Api, dialect_of
from engram_orchestrator.llm.openai_chat.render import reasons
from engram_orchestrator.llm.registry import Providers
from engram_orchestrator.model.models import FigureSource, ModelInfo

Context = grpc.aio.ServicerContext[Any, Any]

_APIS: Final = {
    "openai_chat": pb.MODEL_API_OPENAI_CHAT,
    "openai_responses": pb.MODEL_API_OPENAI_RESPONSES,
    "anthropic": pb.MODEL_API_ANTHROPIC_MESSAGES,
    "rehearsal": pb.MODEL_API_REHEARSAL,
}

_SOURCES: Final = {
    FigureSource.PROVIDER: pb.FIGURE_SOURCE_PROVIDER,
    FigureSource.TABLE: pb.FIGURE_SOURCE_TABLE,
    FigureSource.OVERRIDE: pb.FIGURE_SOURCE_OVERRIDE,
    FigureSource.DEFAULT: pb.FIGURE_SOURCE_DEFAULT,
}
_CATEGORIES: Final = {pb.PROVIDER_CATEGORY_BASE: "base", pb.PROVIDER_CATEGORY_BYOK: "byok"}


class ModelsServicer(models_service_pb2_grpc.ModelServiceServicer):
    """The models that this server was configured with."""

    def __init__(self, models: Providers) -> None:
        self._models = models

    async def GetModel(self, request: rpc.GetModelRequest, context: Context) -> rpc.GetModelResponse:
        """What is known of a model; an empty handle means the one that a new agent gets."""
        handle = request.handle or await self._models.default_handle()
        info, _ = await self._models.resolve_for_turn(handle)
        return rpc.GetModelResponse(model=_model(info))

    async def ListModels(self, request: rpc.ListModelsRequest, context: Context) -> rpc.ListModelsResponse:
        """A page of models, by handle."""
        if request.order_by not in (rpc.MODEL_ORDER_BY_UNSPECIFIED, rpc.MODEL_ORDER_BY_HANDLE):
            raise InvalidArgument("order_by is not known.", field="order_by")
        query = page_query(request)
        wanted = _wanted(request)
        found = [info for info in await self._models.list_models() if wanted(info)]
        page = page_of(found, query, lambda info: info.handle)
        return rpc.ListModelsResponse(
            models=[_model(info) for info in page.items], next_page_token=next_page_token(query, page)
        )


def _wanted(request: rpc.ListModelsRequest) -> Callable[[ModelInfo], bool]:
    """Which models a list looks at. Every one is configured by the operator, and none is hidden."""
    for number in request.provider_categories:
        require_known(_CATEGORIES, number, "provider_categories")
    given = present(request, "handle_search", "hidden")
    search = require_plain(given.get("handle_search", ""), "handle_search").lower()
    is_excluded = given.get("hidden", False) or not (
        not request.provider_categories or pb.PROVIDER_CATEGORY_BASE in request.provider_categories
    )

    def wanted(info: ModelInfo) -> bool:
        of_provider = not request.providers or info.provider in request.providers
        of_type = not request.provider_types or (info.provider_type or info.provider) in request.provider_types
        return not is_excluded and of_provider and of_type and search in info.handle.lower()

    return wanted


def _model(info: ModelInfo) -> pb.Model:
    dialect = dialect_of(info)
    is_remote = info.api != Api.REHEARSAL
    return pb.Model(
        handle=info.handle,
        provider=info.provider,
        provider_model=info.provider_model,
        display_name=info.provider_model,
        api=_APIS[info.api],
        provider_type=info.provider_type or info.provider,
        provider_category=pb.PROVIDER_CATEGORY_BASE,
        endpoint=info.endpoint,
        context_window=info.context_window,
        context_window_source=_SOURCES[info.window_source],
        max_output_tokens=info.max_output_tokens or 0,
        max_output_tokens_source=_SOURCES[info.output_source],
        # What the vendor's API can be asked for; whether a model is any good at it, no API tells.
        capabilities=pb.ModelCapabilities(
            streaming=True,
            tool_calling=True,
            parallel_tool_calls=is_remote and dialect.parallel_flag,
            forced_tool_choice=is_remote,
            strict_tool_schemas=is_remote and dialect.strict_tools,
            structured_output=is_remote and dialect.json_schema,
            temperature=is_remote and not reasons(info),
        ),
    )
