"""The settings of the orchestrator. Only this module reads the environment."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from mnemesh_kit.config import ConfigError, FileEnvironment, fixed
from mnemesh_kit.services import service
from mnemesh_kit.sql import SqlConfig

from mnemesh_orchestrator.llm.embedders import ConfiguredEmbedder
from mnemesh_orchestrator.llm.port import CallLimits
from mnemesh_orchestrator.llm.settings import DIALECTS, Api, LlmSettings, ProviderSettings, configured_providers

_PROVIDER_VARIABLES = {
    "openai_api_key": "OPENAI_API_KEY",
    "openai_base_url": "OPENAI_BASE_URL",
    "anthropic_api_key": "ANTHROPIC_API_KEY",
    "anthropic_base_url": "ANTHROPIC_BASE_URL",
}


@dataclass(frozen=True, kw_only=True)
class Config(SqlConfig):
    """The settings. Each is read from `MNEMESH_ORCHESTRATOR_<FIELD>`, or else from `MNEMESH_<FIELD>`.

    Keys and base URLs of providers are also read from the variables that the providers' own SDKs read: OPENAI_API_KEY,
    OPENAI_BASE_URL, ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL. Those of the other vendors are in `more_providers`.
    """

    port: int = service("orchestrator").port
    blocks_target: str = service("blocks").default_target
    recall_target: str = service("recall").default_target
    archival_target: str = service("archival").default_target
    tools_target: str = service("tools").default_target
    files_target: str = service("files").default_target
    model: str | None = None
    """The handle of the default model of new agents; None chooses one by the keys that are set."""
    openai_api_key: str | None = field(default=None, repr=False)
    openai_base_url: str | None = None
    anthropic_api_key: str | None = field(default=None, repr=False)
    anthropic_base_url: str | None = None
    step_trace_days: int = 7
    """The days for which requests to models and their responses are kept for GetStepTrace; 0 keeps none."""
    openai_api: Literal["openai_chat", "openai_responses"] = "openai_chat"
    """The API at OpenAI's base URL."""
    more_providers: tuple[ProviderSettings, ...] = field(default=(), metadata={"environment": False})
    """The other vendors, read from the variables that docs/providers.md lists."""
    context_windows: tuple[str, ...] = ()
    """Sizes of context windows as `provider/model=tokens`. They override every other source."""
    provider_hosts: tuple[str, ...] = ()
    """The hosts that providers of organizations can have besides the vendors' usual ones. Empty allows every host, but
    with authentication only public addresses."""
    callback_hosts: tuple[str, ...] = ()
    """The hosts that webhooks can have. Empty allows every host, but with authentication only public addresses."""
    secrets_key_file: str | None = None
    """The file of the keys that seal stored secrets, one per line. The first seals, all open. Without it, the
    orchestrator creates a key if it uses SQLite."""
    embedder: str = "mnemesh/wordllama-256"
    """The embedder that recall and archival are configured with, for lists of embedding models. So are the next two."""
    embedder_base_url: str = ""
    embedder_dimension: int = 0
    embedder_api_key: str | None = field(default=None, repr=False)
    """The key that recall and archival have for it. Without one, an embedder that needs a key is refused."""
    provider_idle_seconds: float = 180.0
    """The time without a byte from a provider after which a request fails."""
    input_processors: tuple[str, ...] = ()
    """The names of entry points in `mnemesh.input_processors`, which change inputs before they are stored."""
    tool_result_processors: tuple[str, ...] = ()
    """The names of entry points in `mnemesh.tool_result_processors`, which change results before they are stored."""
    run_days: int = 90
    """The days for which ended runs are kept, with their events, steps and idempotency keys; 0 keeps all."""
    service_retry_seconds: float = 900.0
    """The time for which a run retries to reach a service that becomes unavailable within a step."""
    degrade_seconds: float = fixed(5.0)
    """The time for which a turn waits for tools or archival before it continues without them."""
    takeovers_without_progress: int = 10
    """The number of takeovers in a row without progress after which a run fails."""
    agent_reply_seconds: float = fixed(600.0)
    """The time for which an agent waits for the reply of another."""
    sleeptime_runs: int = 8
    """The number of sleeptime runs of an organization that execute at the same time; 0 executes none."""
    batch_runs: int = 8
    """The number of runs of batches of an organization that execute at the same time; 0 executes none."""
    organization_runs: int = 0
    """The runs of clients of an organization that execute at the same time, whatever its own budget allows; 0 is
    unlimited."""
    organization_tokens_per_day: int = 0
    """The tokens that an organization may use per UTC day, whatever its own budget allows; 0 is unlimited."""
    extraction_tokens_per_day: int = 2_000_000
    """The tokens that extractions of facts may use per organization and UTC day; 0 is unlimited."""
    approval_timeout_seconds: float = 0.0
    """The time after which a pending approval is denied; 0 never denies."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Self:
        """Returns the settings from the environment. Raises ConfigError."""
        config = super().from_env(env)
        env = FileEnvironment(env)
        values: dict[str, Any] = {
            name: env[variable]
            for name, variable in _PROVIDER_VARIABLES.items()
            if env.get(variable) and getattr(config, name) is None
        }
        others = tuple(name for name in DIALECTS if name not in ("openai", "openai_compatible", "anthropic"))
        try:
            values["more_providers"] = configured_providers(env, "ORCHESTRATOR", others)
        except ValueError as error:
            raise ConfigError(f"A provider's API has an invalid value: {error}.") from error
        configured = replace(config, **values)
        _ = configured.language_models.context_windows
        return configured

    @property
    def default_embedder(self) -> ConfiguredEmbedder:
        """The default embedder of new archives."""
        return ConfiguredEmbedder(
            handle=self.embedder,
            base_url=self.embedder_base_url,
            dimension=self.embedder_dimension,
            has_key=bool(self.embedder_api_key or (self.openai_api_key and not self.openai_base_url)),
        )

    @property
    def language_models(self) -> LlmSettings:
        """The settings of the operator's providers.

        Raises:
            ConfigError: A context window does not have the form `provider/model=tokens`.
        """
        return LlmSettings(
            providers=(*self._named_providers(), *self.more_providers),
            default_model=self.model,
            context_windows=dict(_window(text) for text in self.context_windows),
            limits=CallLimits(
                public_addresses_only=self.auth_key_file is not None and not self.provider_hosts,
                idle_seconds=self.provider_idle_seconds,
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
        raise ConfigError(f"MNEMESH_CONTEXT_WINDOWS has an invalid value: {text!r} is not a provider/model=tokens.")
    return handle.strip(), int(tokens)
