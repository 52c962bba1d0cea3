"""Folders: collections of files that agents hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from google.protobuf import field_mask_pb2
from mnemesh.files.v1 import files_pb2, folders_service_pb2, folders_service_pb2_grpc
from mnemesh_kit.errors import NotFound

from mnemesh_client.inputs import json_text, present_fields
from mnemesh_client.paging import Order, paginate, sort_order
from mnemesh_client.transport import Channel

_DELETION_SECONDS = 60.0
_ID_PREFIX = "source-"


class FoldersClient:
    """Calls of FolderService, as `client.folders`. Agents hold folders: see `Agent.files`.

    Errors: NotFound; AlreadyExists for a name in use.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = folders_service_pb2_grpc.FolderServiceStub(channel)

    async def create(
        self,
        name: str,
        *,
        description: str | None = None,
        instructions: str | None = None,
        embedder: str = "",
        chunk_size: int = 0,
        metadata: Mapping[str, Any] | str | None = None,
        request_id: str = "",
    ) -> files_pb2.Folder:
        """Creates a folder.

        Args:
            name: the name, unique in the organization, without "/".
            description: what the folder contains; part of the prompt of its agents.
            instructions: how agents should use it; part of their prompt.
            embedder: the embedder of its passages; empty is the server's default.
            chunk_size: the maximum number of tokens of a passage; 0 is the server's default.
            metadata: any JSON object; it is stored unchanged.
            request_id: the idempotency key, to get the same folder again; empty creates a new one.

        Raises:
            AlreadyExists: the name is in use.
            InvalidArgument: a field is invalid; EMBEDDER_UNKNOWN.
        """
        folder = files_pb2.Folder(
            name=name,
            description=description,
            instructions=instructions,
            embedder=embedder,
            chunk_size=chunk_size,
            metadata=json_text(metadata),
        )
        request = folders_service_pb2.CreateFolderRequest(request_id=request_id, folder=folder)
        return (await self.stub.CreateFolder(request)).folder

    async def get(self, folder_id: str) -> files_pb2.Folder:
        """Returns the folder with an id."""
        return (await self.stub.GetFolder(folders_service_pb2.GetFolderRequest(folder_id=folder_id))).folder

    async def find(self, key: str) -> files_pb2.Folder:
        """Returns the folder with an id or a name.

        Raises:
            NotFound: there is no such folder.
        """
        if key.startswith(_ID_PREFIX):
            return await self.get(key)
        async for folder in self.list(name=key, limit=1):
            return folder
        raise NotFound(
            f"There is no folder {key!r}. Create it with `mnemesh folders create`, or use another name.",
            resource_id=key,
        )

    def list(
        self,
        *,
        name: str | None = None,
        name_search: str | None = None,
        agent_id: str | None = None,
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[files_pb2.Folder]:
        """Yields the folders that match all arguments, oldest first unless `order` is "desc".

        Args:
            name: only the folder with this name.
            name_search: only folders whose name contains this text, in any case.
            agent_id: only folders of this agent.
            order: "asc" or "desc", by the time of creation.
            limit: the maximum number of folders; None yields all.
        """
        criteria = folders_service_pb2.FolderFilter(name=name, name_search=name_search, agent_id=agent_id)
        request = folders_service_pb2.ListFoldersRequest(order=sort_order(order), filter=criteria)
        return paginate(self.stub.ListFolders, request, "folders", limit)

    async def count(self) -> int:
        """Returns the number of folders."""
        return (await self.stub.CountFolders(folders_service_pb2.CountFoldersRequest())).count

    async def update(self, folder_id: str, *, request_id: str = "", **fields: Any) -> files_pb2.Folder:
        """Updates fields of a folder (name, description, instructions, metadata). None clears a field."""
        if "metadata" in fields:
            fields["metadata"] = json_text(fields["metadata"])
        request = folders_service_pb2.UpdateFolderRequest(
            request_id=request_id,
            folder=files_pb2.Folder(id=folder_id, **present_fields(**fields)),
            update_mask=field_mask_pb2.FieldMask(paths=list(fields)),
        )
        return (await self.stub.UpdateFolder(request)).folder

    async def delete(self, folder_id: str, *, request_id: str = "") -> None:
        """Deletes a folder with its files, and detaches it from all agents."""
        request = folders_service_pb2.DeleteFolderRequest(request_id=request_id, folder_id=folder_id)
        await self.stub.DeleteFolder(request, timeout=_DELETION_SECONDS)

    async def agents(self, folder_id: str, *, limit: int | None = None) -> AsyncIterator[str]:
        """Yields the ids of the agents that hold a folder."""
        request = folders_service_pb2.ListFolderAgentsRequest(folder_id=folder_id)
        async for agent_id in paginate(self.stub.ListFolderAgents, request, "agent_ids", limit):
            yield agent_id
