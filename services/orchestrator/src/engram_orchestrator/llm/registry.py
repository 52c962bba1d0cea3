"""The providers that the operator configured: from a model's handle to what is known of it and the client to ask."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from engram_orchestrator.llm.anthropic_messages import AnthropicMessagesClient
from engram_orchestrator.llm.attempts import DEFAULT_LIMITS, CallLimits, Sleep
from engram_orchestrator.llm.catalog import (
    ANTHROPIC,
    OPENAI,
    REHEARSAL_WINDOW,
    UNKNOWN_ANTHROPIC_WINDOW,
    UNKNOWN_COMPATIBLE_WINDOW,
    UNKNOWN_OFFICIAL_WINDOW,
    KnownModel,
    known,
)
from engram_orchestrator.llm.errors import ModelUnknown, ProviderError
from engram_orchestrator.llm.openai_chat import OpenAiChatClient
from engram_orchestrator.llm.openai_chat.render import is_official_endpoint
from engram_orchestrator.llm.port import LlmClient
from engram_orchestrator.llm.rehearsal import REHEARSAL_HANDLE, RehearsalClient
from engram_orchestrator.model.models import ModelInfo, ModelSettings

_DEFAULT_OPENAI = "gpt-4.1"
_DEFAULT_ANTHROPIC = "claude-sonnet-4-5"
_CREDENTIALS_IN_URL = re.compile(r"//[^/@]*@")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """What the operator configured. A base URL without a key is a server that wants none."""

    openai_api_key: str | None = field(default=None, repr=False)
    openai_base_url: str | None = None
    """Any server that speaks chat completions; OpenAI's own where absent."""
    anthropic_api_key: str | None = field(default=None, repr=False)
    anthropic_base_url: str | None = None
    default_model: str | None = None
    """The handle that a new agent gets; absent: chosen by what is configured."""
    context_windows: Mapping[str, int] = field(default_factory=dict)
    """Tokens by handle, where engram's own table is wrong or silent."""
    limits: CallLimits = DEFAULT_LIMITS


class Providers:
    """Resolves handles. Clients are made once per provider, and their SDKs imported when first used."""

    def __init__(self, settings: ProviderSettings, *, sleep: Sleep = asyncio.sleep) -> None:
        self._settings = settings
        self._served: tuple[str, ...] | None = None
        self._clients: dict[str, LlmClient] = {"engram": RehearsalClient()}
        if settings.openai_api_key or settings.openai_base_url:
            self._openai = OpenAiChatClient(
                api_key=settings.openai_api_key,
                base_url=settings.openai_base_url,
                limits=settings.limits,
                sleep=sleep,
            )
            self._clients["openai"] = self._openai
        if settings.anthropic_api_key or settings.anthropic_base_url:
            self._clients["anthropic"] = AnthropicMessagesClient(
                api_key=settings.anthropic_api_key,
                base_url=settings.anthropic_base_url,
                limits=settings.limits,
                sleep=sleep,
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The configured providers, engram's own among them."""
        return tuple(self._clients)

    def resolve(self, handle: str) -> tuple[ModelInfo, LlmClient]:
        """What is known of a model, and the client that asks it.

        Raises:
            ModelUnknown: the handle is no "provider/model", or its provider is not configured.
        """
        provider, _, name = handle.partition("/")
        client = self._clients.get(provider)
        if not name or client is None or (provider == "engram" and handle != REHEARSAL_HANDLE):
            raise ModelUnknown(
                f'No configured provider serves the model "{handle}". Handles are "provider/model"; '
                f"configured: {', '.join(self._clients)}.",
                model=handle,
            )
        return self._info(provider, name), client

    async def default_handle(self) -> str:
        """The model for who names none: the configured one, else OpenAI's, else Anthropic's, else the rehearsal.

        A compatible server is asked which models it has, and its first one taken.
        """
        if self._settings.default_model is not None:
            return self._settings.default_model
        if "openai" in self._clients:
            if self._is_openai_official:
                return f"openai/{_DEFAULT_OPENAI}"
            names = await self._served_names()
            return f"openai/{names[0] if names else _DEFAULT_OPENAI}"
        return f"anthropic/{_DEFAULT_ANTHROPIC}" if "anthropic" in self._clients else REHEARSAL_HANDLE

    async def list_models(self) -> tuple[ModelInfo, ...]:
        """The models on offer, by handle: from engram's table, or from a compatible server's own list.

        That list is as it was last read; it is read here where it never was.
        """
        names = [("engram", REHEARSAL_HANDLE.partition("/")[2])]
        if "openai" in self._clients:
            served = _listed(OPENAI) if self._is_openai_official else self._served or await self._served_names()
            names += [("openai", name) for name in served]
        if "anthropic" in self._clients:
            names += [("anthropic", name) for name in _listed(ANTHROPIC)]
        models = {f"{provider}/{name}": self._info(provider, name) for provider, name in names}
        if (chosen := self._settings.default_model) is not None and chosen not in models:
            provider, _, name = chosen.partition("/")
            if provider in self._clients and name:
                models[chosen] = self._info(provider, name)
        return tuple(models[handle] for handle in sorted(models))

    async def prepare(self, handle: str) -> None:
        """Imports the SDK behind a handle in a thread, so that the first turn does not pay for it.

        Raises:
            ModelUnknown: as `resolve`.
        """
        _, client = self.resolve(handle)
        if isinstance(client, OpenAiChatClient | AnthropicMessagesClient):
            await asyncio.to_thread(client.prepare)

    async def close(self) -> None:
        """Closes every connection pool."""
        for client in self._clients.values():
            await client.close()

    @property
    def _is_openai_official(self) -> bool:
        return is_official_endpoint(self._settings.openai_base_url)

    async def _served_names(self) -> tuple[str, ...]:
        try:
            self._served = await self._openai.list_models()
        except ProviderError:  # a server that lists nothing may still answer to a name
            return ()
        return self._served

    def _info(self, provider: str, name: str) -> ModelInfo:
        handle = f"{provider}/{name}"
        override = self._settings.context_windows.get(handle)
        if provider == "openai":
            endpoint, api = self._settings.openai_base_url, "openai_chat"
            entry = known(OPENAI, name)
        elif provider == "anthropic":
            endpoint, api = self._settings.anthropic_base_url, "anthropic"
            entry = known(ANTHROPIC, name)
        else:
            endpoint, api, entry = None, "rehearsal", None
        shown = None if endpoint is None else _CREDENTIALS_IN_URL.sub("//", endpoint)
        window = override or (entry.context_window if entry else _unknown_window(provider, shown))
        defaults = ModelSettings(context_window=window, max_output_tokens=entry.max_output_tokens if entry else None)
        return ModelInfo(handle, provider, name, api, defaults, shown)


def _unknown_window(provider: str, endpoint: str | None) -> int:
    if provider == "engram":
        return REHEARSAL_WINDOW
    if provider == "anthropic":
        return UNKNOWN_ANTHROPIC_WINDOW
    return UNKNOWN_OFFICIAL_WINDOW if is_official_endpoint(endpoint) else UNKNOWN_COMPATIBLE_WINDOW


def _listed(table: tuple[KnownModel, ...]) -> tuple[str, ...]:
    return tuple(entry.name for entry in table if entry.is_listed)
