"""Providers of the contract and of Letta's API."""

from __future__ import annotations

from typing import Final

from mnemesh.agents.v1 import models_pb2 as pb

from mnemesh_gateway.letta.convert.values import moment, present, set_present
from mnemesh_gateway.letta.schemas.providers import Provider, ProviderFields

_TYPES: Final = {"lmstudio_openai": "lmstudio", "hugging-face": "openai_compatible"} | dict.fromkeys(
    ("baseten", "cerebras", "fireworks", "minimax", "openrouter", "sglang", "zai", "zai_coding"), "openai_compatible"
)
"""Letta's names of types that differ. Those that speak OpenAI's format need a base_url here."""
_NAMES: Final = {"lmstudio": "lmstudio_openai", "openai_compatible": "openai", "mnemesh": "letta"}
_PLAIN: Final = ("base_url", "api_version", "region")


def provider_from_proto(provider: pb.Provider) -> Provider:
    """Returns a provider."""
    return Provider(
        id=provider.id,
        name=provider.name,
        provider_type=_NAMES.get(provider.type, provider.type),
        provider_category="base" if provider.category == pb.PROVIDER_CATEGORY_BASE else "byok",
        base_url=present(provider, "base_url"),
        region=present(provider, "region"),
        api_version=present(provider, "api_version"),
        updated_at=moment(provider, "update_time"),
        last_synced=moment(provider, "last_refresh_time"),
    )


def provider_type(name: str) -> str:
    """Returns the type of a provider. One that the mesh does not know stays as it is, and the mesh refuses it."""
    return _TYPES.get(name, name)


def provider_to_proto(body: ProviderFields, message: pb.Provider) -> list[str]:
    """Sets the address that a body has, and returns the paths."""
    given = {name: getattr(body, name) or None for name in _PLAIN}
    set_present(message, **given)
    return [name for name, value in given.items() if value is not None]


def credentials_to_proto(body: ProviderFields) -> pb.ProviderCredentials:
    """Returns the keys that a body has."""
    found = pb.ProviderCredentials()
    set_present(found, api_key=body.api_key or None, access_key=body.access_key or None)
    return found
