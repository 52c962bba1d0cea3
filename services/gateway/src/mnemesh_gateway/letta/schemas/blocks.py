"""Blocks of core memory."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class Block(msgspec.Struct, kw_only=True):
    """A block, as agents and lists show it."""

    id: str | None = None
    value: str
    limit: int | None = None
    project_id: str | None = None
    template_name: str | None = None
    is_template: bool = False
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None
    preserve_on_migration: bool = False
    label: str | None = None
    read_only: bool = False
    description: str | None = None
    metadata: dict[str, Any] | None = None
    hidden: bool | None = None
    tags: list[str] = []
    created_by_id: str | None = None
    last_updated_by_id: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class CreateBlock(msgspec.Struct, kw_only=True):
    """A block to create."""

    label: str
    value: str
    limit: int | None = None
    project_id: str | None = None
    template_name: str | None = None
    is_template: bool = False
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None
    preserve_on_migration: bool = False
    read_only: bool = False
    description: str | None = None
    metadata: dict[str, Any] | None = None
    hidden: bool | None = None
    tags: list[str] | None = None


class UpdateBlock(msgspec.Struct, kw_only=True):
    """Changes of a block. A field that is null or absent stays as it is."""

    value: str | None = None
    label: str | None = None
    limit: int | None = None
    project_id: str | None = None
    template_name: str | None = None
    is_template: bool | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None
    preserve_on_migration: bool | None = None
    read_only: bool | None = None
    description: str | None = None
    metadata: dict[str, Any] | None = None
    hidden: bool | None = None
    tags: list[str] | None = None
