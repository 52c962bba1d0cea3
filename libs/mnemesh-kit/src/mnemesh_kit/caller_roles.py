"""Checks of the role of a caller for single fields of a request. `mnemesh_kit.access` has the roles of whole RPCs."""

from __future__ import annotations

from mnemesh_kit.call_context import Role, current_principal
from mnemesh_kit.errors import PermissionDenied


def service_only(value: bool, field: str) -> bool:
    """Returns a flag that only services of the mesh may set.

    Raises:
        PermissionDenied: a client sets it. Metadata: field, required_role.
    """
    if value and current_principal().role is not Role.SERVICE:
        raise PermissionDenied(f"Only services of the mesh set {field}.", field=field, required_role=Role.SERVICE.value)
    return value
