"""Folders and their files, also under the older name "sources"."""

from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from mnemesh.agents.v1 import models_pb2
from mnemesh.archival.v1 import passages_service_pb2 as passages_rpc
from mnemesh.files.v1 import files_pb2
from mnemesh.files.v1 import files_service_pb2 as files_rpc
from mnemesh.files.v1 import folders_service_pb2 as rpc
from mnemesh_kit.errors import NotFound
from mnemesh_letta.convert.values import fill, moment_of, set_present, shown

from mnemesh_gateway.letta.agent_files import store_file
from mnemesh_gateway.letta.archives import Passage, passage_from_proto
from mnemesh_gateway.letta.mesh import READ_SECONDS, Mesh, PageQuery, Stamped, cut, list_page
from mnemesh_gateway.letta.model_settings import (
    EmbeddingConfig,
    GivenEmbeddingConfig,
    embedding_config,
    find_embedder,
    given_embedder,
)
from mnemesh_gateway.letta.operations import NO_CONTENT, Call, NoQuery, Operations, read


class Source(Stamped, kw_only=True):
    """A folder."""

    id: str
    name: str
    embedding_config: EmbeddingConfig
    description: str | None = None
    instructions: str | None = None
    metadata: dict[str, Any] | None = None
    vector_db_provider: str | None = None


class UpdateFolder(msgspec.Struct, kw_only=True):
    """Changes of a folder. A field that is null or absent stays as it is."""

    name: str | None = None
    description: str | None = None
    instructions: str | None = None
    metadata: dict[str, Any] | None = None


class CreateFolder(UpdateFolder, kw_only=True):
    """A folder to create."""

    name: str
    embedding: str | None = None
    embedding_chunk_size: int | None = None
    embedding_config: GivenEmbeddingConfig | None = None


class ListFolders(PageQuery, kw_only=True):
    """The query of a list of folders."""

    name: str | None = None


class UploadQuery(msgspec.Struct, kw_only=True):
    """How an uploaded file is named."""

    duplicate_handling: Literal["skip", "error", "suffix", "replace"] = "suffix"
    name: str | None = None


class FileQuery(msgspec.Struct, kw_only=True):
    """Whether a file has its text."""

    include_content: bool = False


class ListFiles(PageQuery, kw_only=True):
    """The query of a list of files."""

    include_content: bool = False


class File(msgspec.Struct, kw_only=True):
    """A file."""

    id: str
    source_id: str
    file_name: str | None = None
    original_file_name: str | None = None
    file_path: str | None = None
    file_type: str | None = None
    file_size: int | None = None
    file_creation_date: str | None = None
    file_last_modified_date: str | None = None
    processing_status: str = "pending"
    error_message: str | None = None
    total_chunks: int | None = None
    chunks_embedded: int | None = None
    content: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class MetadataQuery(msgspec.Struct, kw_only=True):
    """The query of the sizes of folders; the response can include the size of each file."""

    include_detailed_per_source_metadata: bool = False


class FileSize(msgspec.Struct, kw_only=True):
    """The size of a file in bytes."""

    file_id: str
    file_name: str
    file_size: int


class FolderSize(msgspec.Struct, kw_only=True):
    """The number of files of a folder, and their size in bytes together."""

    source_id: str
    source_name: str
    file_count: int
    total_size: int
    files: list[FileSize] = []


class FolderSizes(msgspec.Struct, kw_only=True):
    """All folders, with the sums of their files."""

    total_sources: int
    total_files: int
    total_size: int
    sources: list[FolderSize]


def folder_from_proto(folder: files_pb2.Folder, embedder: models_pb2.EmbeddingModel | None) -> Source:
    config = embedding_config(embedder, folder.embedder)
    config.embedding_chunk_size = folder.chunk_size or config.embedding_chunk_size
    return shown(Source, folder, embedding_config=config)


_STATUSES: Final = {
    files_pb2.FILE_STATUS_PARSING: "parsing",
    files_pb2.FILE_STATUS_EMBEDDING: "embedding",
    files_pb2.FILE_STATUS_COMPLETED: "completed",
    files_pb2.FILE_STATUS_ERROR: "error",
}
DUPLICATES: Final = {
    "skip": files_rpc.DUPLICATE_HANDLING_SKIP,
    "error": files_rpc.DUPLICATE_HANDLING_ERROR,
    "suffix": files_rpc.DUPLICATE_HANDLING_SUFFIX,
    "replace": files_rpc.DUPLICATE_HANDLING_REPLACE,
}


def folder_to_proto(body: CreateFolder) -> files_pb2.Folder:
    """Returns the message of a folder to create."""
    message = files_pb2.Folder()
    fill(message, body)
    set_present(message, embedder=given_embedder(body.embedding, body.embedding_config))
    return message


def file_from_proto(file: files_pb2.File, content: str | None = None) -> File:
    made, changed = moment_of(file, "original_create_time"), moment_of(file, "original_update_time")
    return shown(
        File,
        file,
        file_creation_date=made.isoformat() if made else None,
        file_last_modified_date=changed.isoformat() if changed else None,
        processing_status=_STATUSES.get(file.status, "pending"),
        content=content,
    )


operations = Operations()
_EVERY: Final = PageQuery(limit=1_000_000)


@operations.post("/folders/")
@operations.post("/sources/")
async def create_folder(call: Call[NoQuery, CreateFolder]) -> Source:
    """Creates a folder."""
    request = rpc.CreateFolderRequest(folder=folder_to_proto(call.body))
    return await _shown(call.mesh, (await call.write(call.mesh.folders.CreateFolder, request)).folder)


@operations.get("/folders/")
@operations.get("/sources/")
async def list_folders(call: Call[ListFolders, None]) -> list[Source]:
    """Lists folders, newest first."""
    query = call.query
    request = rpc.ListFoldersRequest(filter=rpc.FolderFilter())
    set_present(request.filter, name=query.name)
    rows = await list_page(call.mesh.folders.ListFolders, request, "folders", query, default="desc")
    return [await _shown(call.mesh, row) for row in rows]


@operations.get("/folders/count")
@operations.get("/sources/count")
async def count_folders(call: Call[NoQuery, None]) -> int:
    """Counts folders."""
    return int((await call.mesh.folders.CountFolders(rpc.CountFoldersRequest(), timeout=READ_SECONDS)).count)


@operations.get("/folders/metadata")
@operations.get("/sources/metadata")
async def retrieve_metadata(call: Call[MetadataQuery, None]) -> FolderSizes:
    """Returns the numbers and sizes of the files in all folders, oldest folder first."""
    rows = await list_page(call.mesh.folders.ListFolders, rpc.ListFoldersRequest(), "folders", _EVERY, default="asc")
    sizes = {row.id: shown(FolderSize, row, source_id=row.id) for row in rows}
    if call.query.include_detailed_per_source_metadata:
        request = files_rpc.ListFilesRequest(filter=files_rpc.FileFilter())
        for file in await list_page(call.mesh.files.ListFiles, request, "files", _EVERY, default="asc"):
            if file.folder_id in sizes:
                size = shown(FileSize, file, file_id=file.id)
                sizes[file.folder_id].files.append(size)
    return FolderSizes(
        total_sources=len(sizes),
        total_files=sum(each.file_count for each in sizes.values()),
        total_size=sum(each.total_size for each in sizes.values()),
        sources=list(sizes.values()),
    )


@operations.get("/folders/name/{name}")
@operations.get("/sources/name/{name}")
async def get_folder_by_name(call: Call[NoQuery, None]) -> str:
    """Returns the id of a folder by its name."""
    request = rpc.ListFoldersRequest(page_size=1, filter=rpc.FolderFilter(name=call.path["name"]))
    for folder in (await read(call.mesh.folders.ListFolders, request)).folders:
        return folder.id
    raise NotFound(f"There is no folder with the name {call.path['name'][:255]!r}.")


@operations.get("/folders/{folder_id}")
@operations.get("/sources/{folder_id}")
async def retrieve_folder(call: Call[NoQuery, None]) -> Source:
    """Returns a folder."""
    return await _shown(call.mesh, await _folder(call))


@operations.patch("/folders/{folder_id}")
@operations.patch("/sources/{folder_id}")
async def modify_folder(call: Call[NoQuery, UpdateFolder]) -> Source:
    """Updates a folder."""
    request = rpc.UpdateFolderRequest(folder=files_pb2.Folder(id=call.path["folder_id"]))
    request.update_mask.paths.extend(fill(request.folder, call.body))
    if not request.update_mask.paths:
        return await _shown(call.mesh, await _folder(call))
    return await _shown(call.mesh, (await call.write(call.mesh.folders.UpdateFolder, request)).folder)


@operations.delete("/folders/{folder_id}")
@operations.delete("/sources/{folder_id}")
async def delete_folder(call: Call[NoQuery, None]) -> None:
    """Deletes a folder with its files."""
    await _folder(call)
    await call.write(call.mesh.folders.DeleteFolder, rpc.DeleteFolderRequest(folder_id=call.path["folder_id"]))


@operations.post("/folders/{folder_id}/upload")
@operations.post("/sources/{folder_id}/upload")
async def upload_file_to_folder(call: Call[UploadQuery, None]) -> File:
    """Stores the file of a form in a folder. It is processed in the background."""
    query = call.query
    header = files_rpc.UploadFileHeader(
        folder_id=(await _folder(call)).id, duplicate_handling=DUPLICATES[query.duplicate_handling]
    )
    set_present(header, name=query.name)
    return file_from_proto((await store_file(call, header)).file)


@operations.get("/folders/{folder_id}/agents")
@operations.get("/sources/{folder_id}/agents")
async def list_agents_for_folder(call: Call[PageQuery, None]) -> list[str]:
    """Lists the ids of the agents that hold a folder."""
    request = rpc.ListFolderAgentsRequest(folder_id=(await _folder(call)).id)
    ids: list[str] = await list_page(call.mesh.folders.ListFolderAgents, request, "agent_ids", _EVERY, default="asc")
    return cut(ids, call.query, str)


@operations.get("/folders/{folder_id}/passages")
@operations.get("/sources/{folder_id}/passages")
async def list_folder_passages(call: Call[PageQuery, None]) -> list[Passage]:
    """Lists the passages of a folder, newest first."""
    request = passages_rpc.ListPassagesRequest(filter=passages_rpc.PassageFilter(folder_id=(await _folder(call)).id))
    rows = await list_page(call.mesh.passages.ListPassages, request, "passages", call.query, default="desc", limit=100)
    return [passage_from_proto(row) for row in rows]


@operations.get("/folders/{folder_id}/files")
@operations.get("/sources/{folder_id}/files")
async def list_files_for_folder(call: Call[ListFiles, None]) -> list[File]:
    """Lists the files of a folder, newest first."""
    query = call.query
    request = files_rpc.ListFilesRequest(filter=files_rpc.FileFilter(folder_id=(await _folder(call)).id))
    rows = await list_page(call.mesh.files.ListFiles, request, "files", query, default="desc", limit=1000)
    return [file_from_proto(row, await _text(call.mesh, row) if query.include_content else None) for row in rows]


@operations.get("/folders/{folder_id}/files/{file_id}")
@operations.get("/sources/{folder_id}/files/{file_id}")
async def retrieve_file(call: Call[FileQuery, None]) -> File:
    """Returns a file of a folder."""
    file = await _file(call)
    return file_from_proto(file, await _text(call.mesh, file) if call.query.include_content else None)


@operations.delete("/folders/{folder_id}/{file_id}", status=NO_CONTENT)
@operations.delete("/sources/{folder_id}/{file_id}", status=NO_CONTENT)
async def delete_file_from_folder(call: Call[NoQuery, None]) -> None:
    """Deletes a file of a folder."""
    await call.write(call.mesh.files.DeleteFile, files_rpc.DeleteFileRequest(file_id=(await _file(call)).id))


async def _folder(call: Call[Any, Any]) -> files_pb2.Folder:
    return (await read(call.mesh.folders.GetFolder, rpc.GetFolderRequest(folder_id=call.path["folder_id"]))).folder


async def _shown(mesh: Mesh, folder: files_pb2.Folder) -> Source:
    return folder_from_proto(folder, await find_embedder(mesh, folder.embedder))


async def _file(call: Call[Any, Any]) -> files_pb2.File:
    """Returns the path's file. Raises NotFound if it is not in the path's folder."""
    file = (await read(call.mesh.files.GetFile, files_rpc.GetFileRequest(file_id=call.path["file_id"]))).file
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
        response = await read(mesh.files.GetFileText, request)
        pieces.append(response.text)
        if not response.HasField("next_offset"):
            return "".join(pieces)
        request.offset = response.next_offset
