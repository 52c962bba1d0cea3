"""Identities as rows: what lists sort and filter by is a column, the rest is a JSON document."""

from typing import Any

import msgspec

from mnemesh_orchestrator.model.identities import Identity

_IDENTITY = msgspec.json.Decoder(Identity)
_ENCODE = msgspec.json.Encoder().encode


def identity_row(identity: Identity) -> dict[str, Any]:
    """An identity as a row."""
    return {
        "id": identity.id,
        "organization_id": identity.organization_id,
        # NULLs would never be equal, and the key must be unique without a project as well.
        "project_id": identity.provenance.project_id or "",
        "identifier_key": identity.identifier_key,
        "name": identity.name,
        "type": identity.type,
        "document": _ENCODE(identity),
        "created_at": identity.created_at,
        "updated_at": identity.updated_at,
    }


def decode_identity(row: Any) -> Identity:
    """The identity of a row of `identities`."""
    return _IDENTITY.decode(row.document)
