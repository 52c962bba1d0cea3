"""The origin of a resource."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provenance:
    """The identities that created and last changed a resource, and ids that mnemesh stores for clients."""

    created_by_id: str = ""
    last_updated_by_id: str = ""
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None
