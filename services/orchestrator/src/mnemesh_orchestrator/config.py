"""The settings of the orchestrator; the only reader of the environment."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from mnemesh_kit.config import ConfigError, ServerConfig

from mnemesh_orchestrator.llm.attempts import CallLimits
from mnemesh_orchestrator.llm.dialects import DIALECTS, Api
from mnemesh_orchestrator.llm.embedders import ConfiguredEmbedder
from mnemesh_orchestrator.llm.settings import LlmSettings, ProviderSettings, configured_providers

_PROVIDER_VARIABLES = {
    "openai_api_key": "OPENAI_API_KEY",
    "openai_base_url": "OPENAI_BASE_URL",
    "anthropic_api_key": "ANTHROPIC_API_KEY",
    "anthropic_base_url": "ANTHROPIC_BASE_URL",
}


@dataclass(frozen=True, kw_only=True)
class Config(ServerConfig):
    """Every field is MNEMESH_ORCHESTRATOR_<FIELD> or, for all services at once, MNEMESH_<FIELD>.

    Providers' keys and base URLs also come from the variables that their own
    SDKs read: OPENAI_API_KEY, OPENAI_BASE_URL, ANTHROPIC_API_KEY and
    ANTHROPIC_BASE_URL. The other vendors' are in `more_providers`.
    """

    port: int = 50050
    database_url: str | None = None
    """`sqlite:////path` or `postgresql://…`; by default orchestrator.db in the data directory."""
    sqlite_synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    """FULL also survives a loss of power, for a disk flush per write."""
    blocks_target: str = "127.0.0.1:50051"
    recall_target: str = "127.0.0.1:50052"
    archival_target: str = "127.0.0.1:50053"
    tools_target: str = "127.0.0.1:50054"
    model: str | None = None
    """Handle of the model that a new agent gets; by default chosen by the keys that are set."""
    openai_api_key: str | None = field(default=None, repr=False)
    openai_base_url: str | None = None
    anthropic_api_key: str | None = field(default=None, repr=False)
    anthropic_base_url: str | None = None
    step_trace_days: int = 7
    """How long requests to models and their answers are kept for GetStepTrace; 0 keeps none."""
    openai_api: Literal["openai_chat", "openai_responses"] = "openai_chat"
    """The API that is spoken at OpenAI's base URL."""
    more_providers: tuple[ProviderSettings, ...] = field(default=(), metadata={"environment": False})
    """Of the other vendors; from the environment by their own names, as docs/providers.md has them."""
    context_windows: tuple[str, ...] = ()
    """`provider/model=tokens`, over whatever is known of these models otherwise."""
    provider_hosts: tuple[str, ...] = ()
    """Hosts that organizations' own providers may be at, beside the vendors' usual ones; any where none is named."""
    secrets_key_file: str | None = None
    """Keys that seal stored secrets, one a line: the first seals, all open. Without it, SQLite gets one of its own."""
    embedder: str = "mnemesh/wordllama-256"
    """The embedder that recall and archival are configured with, for who lists embedders; likewise the next two."""
    embedder_base_url: str = ""
    embedder_dimension: int = 0
    provider_attempts: int = 5
    """At most this many requests for one answer."""
    provider_retry_seconds: float = 60.0
    """All waits between these requests together."""
    provider_idle_seconds: float = 180.0
    """Without a byte from a provider, until the call counts as lost."""
    provider_total_seconds: float = 900.0
    """One request, from the first byte sent to the last read."""
    input_processors: tuple[str, ...] = ()
    """Names of entry points in `mnemesh.input_processors`: what changes inputs before they are stored."""
    tool_result_processors: tuple[str, ...] = ()
    """Names of entry points in `mnemesh.tool_result_processors`: what changes results before they are stored."""
    processor_seconds: float = 5.0
    """What a processor may take for one text."""
    run_days: int = 0
    """How long a run is kept after its end, with its events, steps and request; 0 keeps all."""
    service_retry_seconds: float = 900.0
    """How long a run waits for a tier that goes away in the middle of a step."""

    approval_timeout_seconds: float = 0.0
    """How long an approval waits for its answer before it is denied; 0 is for ever."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Self:
        """The settings from the environment."""
        config = super().from_env(env)
        given: dict[str, Any] = {
            name: env[variable]
            for name, variable in _PROVIDER_VARIABLES.items()
            if env.get(variable) and getattr(config, name) is None
        }
        others = tuple(name for name in DIALECTS if name not in ("openai", "openai_compatible", "anthropic"))
        try:
            given["more_providers"] = configured_providers(env, "ORCHESTRATOR", others)
        except ValueError as error:
            raise ConfigError(f"A provider's API has an invalid value: {error}.") from error
        configured = replace(config, **given)
        _ = configured.language_models.context_windows
        return configured

    @property
    def default_embedder(self) -> ConfiguredEmbedder:
        """What new archives get where none is named."""
        return ConfiguredEmbedder(
            handle=self.embedder, base_url=self.embedder_base_url, dimension=self.embedder_dimension
        )

    @property
    def database(self) -> str:
        """The URL of the service's own database."""
        return self.database_url or f"sqlite:///{self.data_path / 'orchestrator.db'}"

    @property
    def language_models(self) -> LlmSettings:
        """Where models are to be had.

        Raises:
            ConfigError: a window is no `provider/model=tokens`.
        """
        return LlmSettings(
            providers=(*self._named_providers(), *self.more_providers),
            default_model=self.model,
            context_windows=dict(_window(text) for text in self.context_windows),
            limits=CallLimits(
                idle_seconds=self.provider_idle_seconds,
                total_seconds=self.provider_total_seconds,
                attempts=max(1, self.provider_attempts),
                retry_budget_seconds=self.provider_retry_seconds,
            ),
        )

    def _named_providers(self) -> Iterator[ProviderSettings]:
        if self.openai_api_key or self.openai_base_url:
            yield ProviderSettings(
                name="openai",
                type="openai",
                api=Api(self.openai_api),
                base_url=self.openai_base_url,
                api_key=self.openai_api_key,
            )
        if self.anthropic_api_key or self.anthropic_base_url:
            yield ProviderSettings(
                name="anthropic",
                type="anthropic",
                base_url=self.anthropic_base_url,
                api_key=self.anthropic_api_key,
            )


def _window(text: str) -> tuple[str, int]:
    handle, _, tokens = text.rpartition("=")
    if "/" not in handle or not tokens.strip().isdecimal() or int(tokens) < 1:
        raise ConfigError(f"MNEMESH_CONTEXT_WINDOWS has an invalid value: {text!r} is no provider/model=tokens.")
    return handle.strip(), int(tokens)
