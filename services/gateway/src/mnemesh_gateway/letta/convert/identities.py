"""Identities of the contract and of Letta's API."""

from __future__ import annotations

from typing import Any, Final

from mnemesh.agents.v1 import identities_pb2 as pb

from mnemesh_gateway.letta.convert.names import IDENTITY_TYPE_NAMES
from mnemesh_gateway.letta.convert.values import json_from_text, present
from mnemesh_gateway.letta.schemas.agents import IdentityOfAgent

_KINDS: Final = {"text": "string", "boolean": "boolean", "integer": "number", "number": "number", "json": "json"}


def identity_from_proto(identity: pb.Identity) -> IdentityOfAgent:
    """Returns an identity."""
    return IdentityOfAgent(
        id=identity.id,
        identifier_key=identity.identifier_key,
        name=identity.name,
        identity_type=IDENTITY_TYPE_NAMES.get(identity.type, "other"),
        project_id=present(identity.provenance, "project_id"),
        agent_ids=list(identity.agent_ids),
        block_ids=list(identity.block_ids),
        properties=[_property(item) for item in identity.properties],
    )


def _property(item: pb.IdentityProperty) -> dict[str, Any]:
    kind = item.WhichOneof("value") or "text"
    value = getattr(item, kind)
    return {"key": item.key, "type": _KINDS[kind], "value": json_from_text(value) if kind == "json" else value}
