"""Folders and their files, also under the older name "sources"."""

from __future__ import annotations

from typing import Any, Final

from mnemesh.archival.v1 import passages_service_pb2 as passages_rpc
from mnemesh.files.v1 import files_pb2
from mnemesh.files.v1 import files_service_pb2 as files_rpc
from mnemesh.files.v1 import folders_service_pb2 as rpc
from mnemesh_kit.errors import NotFound

from mnemesh_gateway.letta.convert.agents import folder_from_proto
from mnemesh_gateway.letta.convert.folders import (
    DUPLICATES,
    file_from_proto,
    folder_to_proto,
    folder_update_to_proto,
    size_from_proto,
)
from mnemesh_gateway.letta.convert.memory import passage_from_proto
from mnemesh_gateway.letta.convert.models import find_embedder
from mnemesh_gateway.letta.convert.values import set_present
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import NO_CONTENT, Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, cut, listed
from mnemesh_gateway.letta.schemas.agents import Source
from mnemesh_gateway.letta.schemas.folders import (
    CreateFolder,
    File,
    FileQuery,
    FileSize,
    FolderSizes,
    ListFiles,
    ListFolders,
    MetadataQuery,
    UpdateFolder,
    UploadQuery,
)
from mnemesh_gateway.letta.schemas.memory import Passage
from mnemesh_gateway.letta.uploads import store_file

operations = Operations()
_WRITE_SECONDS: Final = 60.0
_EVERY: Final = PageQuery(limit=1_000_000)


@operations.post("/folders/", body=CreateFolder, result=Source)
@operations.post("/sources/", body=CreateFolder, result=Source)
async def create_folder(call: Call[NoQuery, CreateFolder]) -> Source:
    """Creates a folder."""
    request = rpc.CreateFolderRequest(request_id=call.request_id, folder=folder_to_proto(call.body))
    return await _shown(call.mesh, (await call.mesh.folders.CreateFolder(request, timeout=_WRITE_SECONDS)).folder)


@operations.get("/folders/", query=ListFolders, result=list[Source])
@operations.get("/sources/", query=ListFolders, result=list[Source])
async def list_folders(call: Call[ListFolders, None]) -> list[Source]:
    """Lists folders, newest first."""
    query = call.query
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=query.order)
    request = rpc.ListFoldersRequest(filter=rpc.FolderFilter())
    set_present(request.filter, name=query.name)
    rows = await listed(call.mesh.folders.ListFolders, request, "folders", page, default="desc")
    return [await _shown(call.mesh, row) for row in rows]


@operations.get("/folders/count", result=int)
@operations.get("/sources/count", result=int)
async def count_folders(call: Call[NoQuery, None]) -> int:
    """Counts folders."""
    return int((await call.mesh.folders.CountFolders(rpc.CountFoldersRequest(), timeout=READ_SECONDS)).count)


@operations.get("/folders/metadata", query=MetadataQuery, result=FolderSizes)
@operations.get("/sources/metadata", query=MetadataQuery, result=FolderSizes)
async def retrieve_metadata(call: Call[MetadataQuery, None]) -> FolderSizes:
    """Returns the numbers and sizes of the files in all folders, oldest folder first."""
    rows = await listed(call.mesh.folders.ListFolders, rpc.ListFoldersRequest(), "folders", _EVERY, default="asc")
    sizes = {row.id: size_from_proto(row) for row in rows}
    if call.query.include_detailed_per_source_metadata:
        request = files_rpc.ListFilesRequest(filter=files_rpc.FileFilter())
        for file in await listed(call.mesh.files.ListFiles, request, "files", _EVERY, default="asc"):
            if file.folder_id in sizes:
                size = FileSize(file_id=file.id, file_name=file.name, file_size=file.size_bytes)
                sizes[file.folder_id].files.append(size)
    return FolderSizes(
        total_sources=len(sizes),
        total_files=sum(each.file_count for each in sizes.values()),
        total_size=sum(each.total_size for each in sizes.values()),
        sources=list(sizes.values()),
    )


@operations.get("/folders/name/{name}", result=str)
@operations.get("/sources/name/{name}", result=str)
async def get_folder_by_name(call: Call[NoQuery, None]) -> str:
    """Returns the id of a folder by its name."""
    request = rpc.ListFoldersRequest(page_size=1, filter=rpc.FolderFilter(name=call.path["name"]))
    for folder in (await call.mesh.folders.ListFolders(request, timeout=READ_SECONDS)).folders:
        return folder.id
    raise NotFound(f"There is no folder with the name {call.path['name'][:255]!r}.")


@operations.get("/folders/{folder_id}", result=Source)
@operations.get("/sources/{folder_id}", result=Source)
async def retrieve_folder(call: Call[NoQuery, None]) -> Source:
    """Returns a folder."""
    return await _shown(call.mesh, await _folder(call))


@operations.patch("/folders/{folder_id}", body=UpdateFolder, result=Source)
@operations.patch("/sources/{folder_id}", body=UpdateFolder, result=Source)
async def modify_folder(call: Call[NoQuery, UpdateFolder]) -> Source:
    """Updates a folder."""
    request = folder_update_to_proto(call.body, call.path["folder_id"], call.request_id)
    if not request.update_mask.paths:
        return await _shown(call.mesh, await _folder(call))
    return await _shown(call.mesh, (await call.mesh.folders.UpdateFolder(request, timeout=_WRITE_SECONDS)).folder)


@operations.delete("/folders/{folder_id}")
@operations.delete("/sources/{folder_id}")
async def delete_folder(call: Call[NoQuery, None]) -> None:
    """Deletes a folder with its files."""
    await _folder(call)
    request = rpc.DeleteFolderRequest(request_id=call.request_id, folder_id=call.path["folder_id"])
    await call.mesh.folders.DeleteFolder(request, timeout=_WRITE_SECONDS)


@operations.post("/folders/{folder_id}/upload", query=UploadQuery, result=File)
@operations.post("/sources/{folder_id}/upload", query=UploadQuery, result=File)
async def upload_file_to_folder(call: Call[UploadQuery, None]) -> File:
    """Stores the file of a form in a folder. It is processed in the background."""
    query = call.query
    header = files_rpc.UploadFileHeader(
        folder_id=(await _folder(call)).id, duplicate_handling=DUPLICATES[query.duplicate_handling]
    )
    set_present(header, name=query.name)
    return file_from_proto((await store_file(call, header)).file)


@operations.get("/folders/{folder_id}/agents", query=PageQuery, result=list[str])
@operations.get("/sources/{folder_id}/agents", query=PageQuery, result=list[str])
async def list_agents_for_folder(call: Call[PageQuery, None]) -> list[str]:
    """Lists the ids of the agents that hold a folder."""
    request = rpc.ListFolderAgentsRequest(folder_id=(await _folder(call)).id)
    ids: list[str] = await listed(call.mesh.folders.ListFolderAgents, request, "agent_ids", _EVERY, default="asc")
    return cut(ids, call.query, str)


@operations.get("/folders/{folder_id}/passages", query=PageQuery, result=list[Passage])
@operations.get("/sources/{folder_id}/passages", query=PageQuery, result=list[Passage])
async def list_folder_passages(call: Call[PageQuery, None]) -> list[Passage]:
    """Lists the passages of a folder, newest first."""
    request = passages_rpc.ListPassagesRequest(filter=passages_rpc.PassageFilter(folder_id=(await _folder(call)).id))
    rows = await listed(call.mesh.passages.ListPassages, request, "passages", call.query, default="desc", limit=100)
    return [passage_from_proto(row) for row in rows]


@operations.get("/folders/{folder_id}/files", query=ListFiles, result=list[File])
@operations.get("/sources/{folder_id}/files", query=ListFiles, result=list[File])
async def list_files_for_folder(call: Call[ListFiles, None]) -> list[File]:
    """Lists the files of a folder, newest first."""
    query = call.query
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=query.order)
    request = files_rpc.ListFilesRequest(filter=files_rpc.FileFilter(folder_id=(await _folder(call)).id))
    rows = await listed(call.mesh.files.ListFiles, request, "files", page, default="desc", limit=1000)
    return [file_from_proto(row, await _text(call.mesh, row) if query.include_content else None) for row in rows]


@operations.get("/folders/{folder_id}/files/{file_id}", query=FileQuery, result=File)
@operations.get("/sources/{folder_id}/files/{file_id}", query=FileQuery, result=File)
async def retrieve_file(call: Call[FileQuery, None]) -> File:
    """Returns a file of a folder."""
    file = await _file(call)
    return file_from_proto(file, await _text(call.mesh, file) if call.query.include_content else None)


@operations.delete("/folders/{folder_id}/{file_id}", status=NO_CONTENT)
@operations.delete("/sources/{folder_id}/{file_id}", status=NO_CONTENT)
async def delete_file_from_folder(call: Call[NoQuery, None]) -> None:
    """Deletes a file of a folder."""
    request = files_rpc.DeleteFileRequest(request_id=call.request_id, file_id=(await _file(call)).id)
    await call.mesh.files.DeleteFile(request, timeout=_WRITE_SECONDS)


async def _folder(call: Call[Any, Any]) -> files_pb2.Folder:
    request = rpc.GetFolderRequest(folder_id=call.path["folder_id"])
    return (await call.mesh.folders.GetFolder(request, timeout=READ_SECONDS)).folder


async def _shown(mesh: Mesh, folder: files_pb2.Folder) -> Source:
    return folder_from_proto(folder, await find_embedder(mesh, folder.embedder))


async def _file(call: Call[Any, Any]) -> files_pb2.File:
    """Returns the path's file. Raises NotFound if it is not in the path's folder."""
    request = files_rpc.GetFileRequest(file_id=call.path["file_id"])
    file = (await call.mesh.files.GetFile(request, timeout=READ_SECONDS)).file
    if file.folder_id != call.path["folder_id"]:
        raise NotFound(f"{call.path['folder_id']} has no file {file.id}.")
    return file


async def _text(mesh: Mesh, file: files_pb2.File) -> str | None:
    """Returns the text of a file; None before it is parsed."""
    if not file.HasField("total_lines"):
        return None
    pieces: list[str] = []
    request = files_rpc.GetFileTextRequest(file_id=file.id)
    while True:
        response = await mesh.files.GetFileText(request, timeout=READ_SECONDS)
        pieces.append(response.text)
        if not response.HasField("next_offset"):
            return "".join(pieces)
        request.offset = response.next_offset
