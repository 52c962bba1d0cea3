"""The settings of the gateway. Only this module reads the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from mnemesh_kit.config import ConfigError, ServerConfig, fixed
from mnemesh_kit.services import service


@dataclass(frozen=True, kw_only=True)
class Config(ServerConfig):
    """The settings. Each is read from `MNEMESH_GATEWAY_<FIELD>`, or else from `MNEMESH_<FIELD>`."""

    port: int = service("gateway").port
    orchestrator_target: str = service("orchestrator").default_target
    blocks_target: str = service("blocks").default_target
    recall_target: str = service("recall").default_target
    archival_target: str = service("archival").default_target
    allowed_hosts: tuple[str, ...] = ()
    """The values of the Host header that are accepted, without ports. Empty: names of this machine; with
    authentication, every value."""
    allowed_origins: tuple[str, ...] = ()
    """The origins of web pages that may call the gateway, such as `https://chat.example.com`; `*` is every origin."""
    max_body_mb: int = fixed(64)
    """The size of the largest request body."""
    strict_parameters: bool = False
    """Refuses parameters of OpenAI's API that are ignored otherwise."""
    max_connections: int = 4096
    """How many connections may be open. The one that has waited longest without a request makes room for a new one."""
    max_connections_per_address: int = 1024
    """How many of them may come from one address. A reverse proxy is one address."""
    tls_cert_file: str | None = None
    """A PEM file with the certificate chain. Unset: no TLS."""
    tls_key_file: str | None = None
    """A PEM file with the key of the certificate."""
    letta_profile: str = "0.16.7"
    """The release of the Letta server that Letta's API follows where releases differ: 0.16.7 or 0.16.1."""
    callback_hosts: tuple[str, ...] = ()
    """The hosts that callbacks can have. Empty allows every host, but with authentication only public addresses."""
    debug_sessions: bool = field(default=False, metadata={"environment": False})
    """Serves /debug/sessions. Set by PROXY_DEBUG_SESSIONS=1."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Self:
        """Returns the settings from the environment. Raises ConfigError."""
        config = replace(super().from_env(env), debug_sessions=env.get("PROXY_DEBUG_SESSIONS") == "1")
        if config.letta_profile not in {"0.16.7", "0.16.1"}:
            raise ConfigError("MNEMESH_GATEWAY_LETTA_PROFILE must be 0.16.7 or 0.16.1.")
        return config
