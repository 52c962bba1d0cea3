"""The settings of the orchestrator; the only reader of the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from engram_kit.config import ServerConfig

from engram_orchestrator.llm.registry import ProviderSettings

_PROVIDER_VARIABLES = {
    "openai_api_key": "OPENAI_API_KEY",
    "openai_base_url": "OPENAI_BASE_URL",
    "anthropic_api_key": "ANTHROPIC_API_KEY",
    "anthropic_base_url": "ANTHROPIC_BASE_URL",
}


@dataclass(frozen=True, kw_only=True)
class Config(ServerConfig):
    """Every field is ENGRAM_ORCHESTRATOR_<FIELD> or, for all services at once, ENGRAM_<FIELD>.

    Providers' keys and base URLs also come from the variables that their own
    SDKs read: OPENAI_API_KEY, OPENAI_BASE_URL, ANTHROPIC_API_KEY and
    ANTHROPIC_BASE_URL.
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
    tier_patience_seconds: float = 900.0
    """How long a run waits for a tier that goes away in the middle of a step."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Self:
        """The settings from the environment."""
        config = super().from_env(env)
        given: dict[str, Any] = {
            name: env[variable]
            for name, variable in _PROVIDER_VARIABLES.items()
            if env.get(variable) and getattr(config, name) is None
        }
        return replace(config, **given)

    @property
    def database(self) -> str:
        """The URL of the service's own database."""
        return self.database_url or f"sqlite:///{self.data_path / 'orchestrator.db'}"

    @property
    def providers(self) -> ProviderSettings:
        """Where models are to be had."""
        return ProviderSettings(
            openai_api_key=self.openai_api_key,
            openai_base_url=self.openai_base_url,
            anthropic_api_key=self.anthropic_api_key,
            anthropic_base_url=self.anthropic_base_url,
            default_model=self.model,
        )
