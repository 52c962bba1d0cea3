"""Rows of identities. Fields that lists sort or filter by are columns; the others are a JSON document."""

from typing import Any

import msgspec

from mnemesh_orchestrator.model.identities import Identity

_IDENTITY = msgspec.json.Decoder(Identity)
_ENCODE = msgspec.json.Encoder().encode


def identity_row(identity: Identity) -> dict[str, Any]:
    """Returns the row of an identity."""
    return {
        "id": identity.id,
        "organization_id": identity.organization_id,
        # NULL values are never equal, and the key must be unique without a project, too.
        "project_id": identity.provenance.project_id or "",
        "identifier_key": identity.identifier_key,
        "name": identity.name,
        "type": identity.type,
        "document": _ENCODE(identity),
        "created_at": identity.created_at,
        "updated_at": identity.updated_at,
    }


def decode_identity(row: Any) -> Identity:
    """Returns the identity of a row of `identities`."""
    return _IDENTITY.decode(row.document)
