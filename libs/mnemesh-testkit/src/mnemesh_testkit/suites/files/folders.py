"""Folders: creation, lists, changes, deletion."""

from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import folders_service_pb2 as rpc
from mnemesh.types.v1 import audit_pb2, paging_pb2
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.ids import new_id

from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.suites.files.calls import ABSENT_FOLDER, Files, FilesCases, reason


class Folders(FilesCases):
    """What the contract says of FolderService."""

    async def test_new_folder_has_the_given_fields_the_defaults_and_an_archive(
        self, client: Files, caller: Principal
    ) -> None:
        given = {"description": "Of 2026", "instructions": "Quote pages.", "metadata": '{"a": 1}'}
        provenance = audit_pb2.Provenance(project_id="p-1", created_by_id="someone else")
        folder = await client.folder("Re\u0301sume\u0301s", provenance=provenance, **given)
        assert folder == await client.get_folder(folder.id)
        assert folder.id.startswith("source-")
        assert folder.archive_id.startswith("archive-")
        assert folder.name == "R\u00e9sum\u00e9s"
        assert {name: getattr(folder, name) for name in given} == given
        assert (folder.embedder, folder.chunk_size) == ("mnemesh/hashing-256", 300)
        assert (folder.file_count, folder.size_bytes) == (0, 0)
        assert folder.provenance.project_id == "p-1"
        assert folder.provenance.created_by_id == folder.provenance.last_updated_by_id == caller.subject_id
        assert folder.create_time == folder.update_time

    async def test_name_is_unique_in_the_organization(self, client: Files) -> None:
        folder = await client.folder()
        error = await catch_refusal(client.folder())
        assert (error.reason, error.field) == ("ALREADY_EXISTS", "folder.name")
        other = await client.folder("others")
        rename = rpc.UpdateFolderRequest(
            folder=pb.Folder(id=other.id, name="reports"), update_mask=FieldMask(paths=["name"])
        )
        assert await reason(client.folders.UpdateFolder(rename)) == "ALREADY_EXISTS"
        with as_principal(Principal(new_id("org"), new_id("user"))):
            assert (await client.folder()).id != folder.id
        await client.delete_folder(folder.id)
        assert (await client.folder()).id != folder.id

    async def test_repeated_request_returns_the_first_folder(self, client: Files) -> None:
        first = await client.folder(request_id="r-1")
        assert await client.folder(request_id="r-1") == first
        assert await reason(client.folder("others", request_id="r-1")) == "REQUEST_ID_REUSED"
        count = await client.folders.CountFolders(rpc.CountFoldersRequest())
        assert count.count == 1

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"name": ""}, "folder.name"),
            ({"name": "a/b"}, "folder.name"),
            ({"name": "a\u202eb"}, "folder.name"),
            ({"name": "x" * 256}, "folder.name"),
            ({"chunk_size": -1}, "folder.chunk_size"),
            ({"chunk_size": 1_000_000}, "folder.chunk_size"),
            ({"metadata": "[]"}, "folder.metadata"),
            ({"description": "a\0b"}, "folder.description"),
            ({"instructions": "x" * 10_001}, "folder.instructions"),
            ({"embedder": "a\nb"}, "folder.embedder"),
            ({"provenance": audit_pb2.Provenance(project_id="a\nb")}, "folder.provenance.project_id"),
        ],
    )
    async def test_bad_value_is_refused(self, client: Files, fields: dict[str, Any], field: str) -> None:
        error = await catch_refusal(client.folder(**fields))
        assert (error.reason, error.field) == ("INVALID_ARGUMENT", field)

    async def test_unknown_embedder_is_refused_and_leaves_the_name_free(self, client: Files) -> None:
        error = await catch_refusal(client.folder(embedder="nobody/nothing"))
        assert (error.reason, error.field) == ("EMBEDDER_UNKNOWN", "folder.embedder")
        await client.folder()

    async def test_lists_are_filtered_ordered_and_paged(self, client: Files) -> None:
        made = [await client.folder(name) for name in ("beta", "alpha", "Gamma")]
        provenance = audit_pb2.Provenance(project_id="p-1", template_id="t-1")
        made.append(await client.folder("delta", provenance=provenance))

        async def names(**request: Any) -> list[str]:
            return [
                folder.name for folder in (await client.folders.ListFolders(rpc.ListFoldersRequest(**request))).folders
            ]

        assert await names() == ["beta", "alpha", "Gamma", "delta"]
        assert await names(order=paging_pb2.SORT_ORDER_DESCENDING, page_size=2) == ["delta", "Gamma"]
        assert await names(order_by=rpc.FOLDER_ORDER_BY_NAME) == ["Gamma", "alpha", "beta", "delta"]
        assert await names(after_id=made[0].id, before_id=made[3].id) == ["alpha", "Gamma"]
        assert await names(filter=rpc.FolderFilter(name="alpha")) == ["alpha"]
        assert await names(filter=rpc.FolderFilter(name_search="AMM")) == ["Gamma"]
        assert await names(filter=rpc.FolderFilter(folder_ids=[made[1].id, ABSENT_FOLDER])) == ["alpha"]
        assert await names(filter=rpc.FolderFilter(project_id="p-1", template_id="t-1")) == ["delta"]
        assert await names(filter=rpc.FolderFilter(project_id="p-2")) == []
        page = await client.folders.ListFolders(rpc.ListFoldersRequest(page_size=3))
        assert await names(page_size=3, page_token=page.next_page_token) == ["delta"]
        counted = await client.folders.CountFolders(rpc.CountFoldersRequest(filter=rpc.FolderFilter(name_search="a")))
        assert counted.count == 4

    async def test_update_sets_the_named_fields_and_clears_absent_ones(self, client: Files) -> None:
        folder = await client.folder(description="old", instructions="kept", metadata="{}")
        mask = FieldMask(paths=["name", "description", "provenance.project_id"])
        changed = pb.Folder(id=folder.id, name=" new ", instructions="ignored", embedder="ignored/x")
        changed.provenance.project_id = "p-2"
        request = rpc.UpdateFolderRequest(folder=changed, update_mask=mask, request_id="u-1")
        updated = (await client.folders.UpdateFolder(request)).folder
        assert (updated.name, updated.HasField("description"), updated.instructions) == ("new", False, "kept")
        assert (updated.provenance.project_id, updated.embedder) == ("p-2", folder.embedder)
        assert updated.update_time.ToNanoseconds() > folder.update_time.ToNanoseconds()
        assert (await client.folders.UpdateFolder(request)).folder == updated
        for paths in ([], ["embedder"], ["nothing"]):
            request = rpc.UpdateFolderRequest(folder=changed, update_mask=FieldMask(paths=paths))
            assert (await catch_refusal(client.folders.UpdateFolder(request))).field == "update_mask"

    async def test_deleted_folder_is_gone_with_its_files(self, client: Files, folder: pb.Folder) -> None:
        file = (await client.upload(folder.id)).file
        await client.delete_folder(folder.id)
        await client.delete_folder(folder.id)
        assert await reason(client.get_folder(folder.id)) == "NOT_FOUND"
        assert await reason(client.file(file.id)) == "NOT_FOUND"
        assert await reason(client.upload(folder.id)) == "NOT_FOUND"
        assert await client.names() == []

    async def test_absent_folder(self, client: Files, folder: pb.Folder) -> None:
        assert await reason(client.get_folder(ABSENT_FOLDER)) == "NOT_FOUND"
        assert await reason(client.delete_folder(ABSENT_FOLDER)) == "NOT_FOUND"
        assert (await catch_refusal(client.get_folder("source-1"))).field == "folder_id"
        with as_principal(Principal(new_id("org"), new_id("user"))):
            assert await reason(client.get_folder(folder.id)) == "NOT_FOUND"
            assert await reason(client.upload(folder.id)) == "NOT_FOUND"
