"""Models, the providers of models, and the system prompts that an agent can be created with."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from google.protobuf import field_mask_pb2
from mnemesh.agents.v1 import (
    agents_pb2,
    agents_service_pb2,
    agents_service_pb2_grpc,
    models_pb2,
    models_service_pb2,
    models_service_pb2_grpc,
)
from mnemesh_kit.errors import NotFound

from mnemesh_client.inputs import is_id, present_fields
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


class ProvidersClient:
    """Calls of ModelService about providers, as `client.providers`.

    Errors: AlreadyExists for a name in use; NotFound; the PROVIDER_… reasons of `check` and `refresh`. API keys are
    write-only.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = models_service_pb2_grpc.ModelServiceStub(channel)

    async def create(
        self,
        name: str,
        type: str,  # noqa: A002  (the name of the field)
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> models_pb2.Provider:
        """Creates a provider. `fields` are other fields of Provider, such as base_url.

        A provider that cannot be reached is also created; see its `last_refresh_error`.
        """
        request = models_service_pb2.CreateProviderRequest(
            provider=models_pb2.Provider(name=name, type=type, **fields), credentials=_credentials(api_key, headers)
        )
        return (await self.stub.CreateProvider(request)).provider

    async def get(self, key: str) -> models_pb2.Provider:
        """Returns a provider by id or name."""
        if is_id(key, "provider"):
            return (await self.stub.GetProvider(models_service_pb2.GetProviderRequest(provider_id=key))).provider
        found = (await self.stub.ListProviders(models_service_pb2.ListProvidersRequest(name=key))).providers
        if not found:
            raise NotFound(f"There is no provider {key!r}.", resource_id=key)
        # If the organization and the operator use the same name, the organization's provider serves the models.
        return max(found, key=lambda provider: provider.category)

    def list(self, *, types: Sequence[str] = (), limit: int | None = None) -> AsyncIterator[models_pb2.Provider]:
        """Yields providers: the operator's first, then by creation time."""
        request = models_service_pb2.ListProvidersRequest(types=types)
        return paginate(self.stub.ListProviders, request, "providers", limit)

    async def update(
        self,
        key: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> models_pb2.Provider:
        """Updates fields and credentials. None clears a field; an empty `api_key` deletes the key."""
        provider = models_pb2.Provider(id=(await self.get(key)).id)
        for name, value in fields.items():
            if value is not None:
                setattr(provider, name, value)
        request = models_service_pb2.UpdateProviderRequest(
            provider=provider, update_mask=field_mask_pb2.FieldMask(paths=list(fields))
        )
        if api_key is not None or headers:
            request.credentials.CopyFrom(_credentials(api_key, headers))
        return (await self.stub.UpdateProvider(request)).provider

    async def delete(self, key: str) -> None:
        """Deletes a provider of the organization, with its credentials.

        Agents with its models are not changed: their turns fail until they get another model.
        """
        provider_id = (await self.get(key)).id
        await self.stub.DeleteProvider(models_service_pb2.DeleteProviderRequest(provider_id=provider_id))

    async def refresh(self, key: str) -> models_service_pb2.RefreshProviderResponse:
        """Reads the list of models from a provider again."""
        provider_id = (await self.get(key)).id
        return await self.stub.RefreshProvider(models_service_pb2.RefreshProviderRequest(provider_id=provider_id))

    async def check(self, key: str, *, api_key: str | None = None) -> Sequence[str]:
        """Asks a provider for its models and returns their names. Stores nothing.

        Raises:
            MnemeshError: the provider does not work; see its PROVIDER_… reason.
        """
        request = models_service_pb2.CheckProviderRequest(provider_id=(await self.get(key)).id)
        if api_key is not None:
            request.credentials.CopyFrom(_credentials(api_key, None))
        return tuple((await self.stub.CheckProvider(request)).provider_models)


def _credentials(api_key: str | None, headers: Mapping[str, str] | None) -> models_pb2.ProviderCredentials:
    rows = [models_pb2.ProviderHeader(name=name, value=value) for name, value in (headers or {}).items()]
    return models_pb2.ProviderCredentials(api_key=api_key, headers=rows)


class PromptsClient:
    """Calls of AgentService about system prompts, as `e.prompts`: built-in prompts and the operator's files."""

    def __init__(self, channel: Channel) -> None:
        self.stub = agents_service_pb2_grpc.AgentServiceStub(channel)

    async def get(self, key: str) -> agents_pb2.SystemPrompt:
        """Returns the current prompt with a key. Raises NotFound."""
        return (await self.stub.GetSystemPrompt(agents_service_pb2.GetSystemPromptRequest(key=key))).system_prompt

    def list(self, *, limit: int | None = None) -> AsyncIterator[agents_pb2.SystemPrompt]:
        """Yields all prompts, in order of their keys."""
        return paginate(
            self.stub.ListSystemPrompts, agents_service_pb2.ListSystemPromptsRequest(), "system_prompts", limit
        )
