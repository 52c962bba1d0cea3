"""Agent files."""

from __future__ import annotations

from typing import Any

import msgspec


class ExportOptions(msgspec.Struct):
    """What an agent file has."""

    scrub_messages: bool = False
    use_legacy_format: bool = False
    conversation_id: str | None = None


class ExportBody(msgspec.Struct):
    """The options of an export. Skills are JSON objects; the file contains them unchanged."""

    skills: list[dict[str, Any]] = []
    scrub_messages: bool = False
    conversation_id: str | None = None


class ImportForm(msgspec.Struct):
    """The text fields of the form of an import."""

    name: str | None = None
    override_name: str | None = None
    model: str | None = None
    override_model_handle: str | None = None
    embedding: str | None = None
    override_embedding_handle: str | None = None
    secrets: str | None = None
    env_vars_json: str | None = None
    append_copy_suffix: bool = False
    override_existing_tools: bool = False
    strip_messages: bool = False


class ImportedAgents(msgspec.Struct):
    """The agents that an import created, and a sentence about each part of the file that it did not take."""

    agent_ids: list[str]
    left_out: list[str] = []
