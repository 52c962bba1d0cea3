"""Conversion of folders and their filters."""

from __future__ import annotations

from typing import Final

from mnemesh.files.v1 import files_pb2, folders_service_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import timestamp_to_proto

from mnemesh_files.model.folders import Folder, FolderDraft, FolderFilter, FolderOrder
from mnemesh_files.rpc.convert.fields import (
    agent_id_from_proto,
    enum_from_proto,
    folder_id_from_proto,
    optional_field,
    provenance_from_proto,
    provenance_to_proto,
)

_ORDERS: Final = {
    folders_service_pb2.FOLDER_ORDER_BY_UNSPECIFIED: FolderOrder.CREATED,
    folders_service_pb2.FOLDER_ORDER_BY_CREATE_TIME: FolderOrder.CREATED,
    folders_service_pb2.FOLDER_ORDER_BY_UPDATE_TIME: FolderOrder.UPDATED,
    folders_service_pb2.FOLDER_ORDER_BY_NAME: FolderOrder.NAME,
}


def folder_to_proto(folder: Folder) -> files_pb2.Folder:
    """Returns a folder as a message."""
    return files_pb2.Folder(
        id=folder.id,
        name=folder.name,
        description=folder.description,
        instructions=folder.instructions,
        metadata=folder.metadata,
        embedder=folder.embedder,
        chunk_size=folder.chunk_size,
        archive_id=folder.archive_id,
        file_count=folder.file_count,
        size_bytes=folder.size_bytes,
        create_time=timestamp_to_proto(folder.created_at),
        update_time=timestamp_to_proto(folder.updated_at),
        provenance=provenance_to_proto(folder.provenance),
    )


def folder_draft_from_proto(message: files_pb2.Folder) -> FolderDraft:
    """Returns the fields of a folder that callers set."""
    return FolderDraft(
        name=message.name,
        description=optional_field(message, "description"),
        instructions=optional_field(message, "instructions"),
        metadata=optional_field(message, "metadata"),
        embedder=message.embedder,
        chunk_size=message.chunk_size,
        provenance=provenance_from_proto(message.provenance),
    )


def folder_filter_from_proto(message: folders_service_pb2.FolderFilter) -> FolderFilter:
    """Returns a filter of folders. Raises InvalidArgument for an id that is not well-formed."""
    agent_id = optional_field(message, "agent_id")
    return FolderFilter(
        folder_ids=tuple(folder_id_from_proto(value, "filter.folder_ids") for value in message.folder_ids),
        name=optional_field(message, "name"),
        name_search=optional_field(message, "name_search"),
        agent_id=None if agent_id is None else agent_id_from_proto(agent_id, "filter.agent_id"),
        project_id=optional_field(message, "project_id"),
        template_id=optional_field(message, "template_id"),
    )


def folder_order_from_proto(number: int) -> FolderOrder:
    """Returns the order of a list of folders. Raises InvalidArgument if it is unknown."""
    return enum_from_proto(_ORDERS, number, "order_by")


def require_agent_order(order_by: int) -> None:
    """Raises InvalidArgument if the order of a folder's agents is unknown."""
    if order_by not in folders_service_pb2.FolderAgentOrderBy.values():
        raise InvalidArgument("order_by is not a known order.", field="order_by")
