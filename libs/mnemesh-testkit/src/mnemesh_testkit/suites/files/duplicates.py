"""Uploads of names and contents that the folder has."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as rpc

from mnemesh_testkit.errors import refused
from mnemesh_testkit.suites.files.calls import ERROR, REPLACE, SKIP, SUFFIX, Files, FilesCases

AT_ONCE = 20


class Duplicates(FilesCases):
    """What the contract says of DuplicateHandling."""

    async def test_skip_returns_the_existing_file(self, client: Files, folder: pb.Folder) -> None:
        first = (await client.upload(folder.id)).file
        again = await client.upload(folder.id, content=b"new", duplicate_handling=SKIP)
        assert (again.file.id, again.outcome) == (first.id, rpc.UPLOAD_OUTCOME_SKIPPED)
        assert await client.content(first.id) == b"one\ntwo\n"

    async def test_error_names_the_file(self, client: Files, folder: pb.Folder) -> None:
        first = (await client.upload(folder.id)).file
        error = await refused(client.upload(folder.id, content=b"new", duplicate_handling=ERROR))
        assert (error.reason, error.metadata["resource_id"]) == ("ALREADY_EXISTS", first.id)
        assert await client.names() == ["notes.txt"]

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("a.txt", ["a.txt", "a_(1).txt", "a_(2).txt"]),
            (".profile", [".profile", ".profile_(1)", ".profile_(2)"]),
            ("100%_a.b", ["100%_a.b", "100%_a_(1).b", "100%_a_(2).b"]),
            ("x" * 251 + ".txt", ["x" * 251 + ".txt", "x" * 247 + "_(1).txt", "x" * 247 + "_(2).txt"]),
        ],
    )
    async def test_suffix_counts(self, client: Files, folder: pb.Folder, name: str, expected: list[str]) -> None:
        files = [(await client.upload(folder.id, name)).file for _ in expected]
        assert [file.name for file in files] == expected
        assert {file.original_name for file in files} == {name}

    async def test_suffixed_name_that_is_taken_is_left_out(self, client: Files, folder: pb.Folder) -> None:
        await client.upload(folder.id, "a_(1).txt")
        await client.upload(folder.id, "a_(x).txt")
        names = [(await client.upload(folder.id, "a.txt", duplicate_handling=SUFFIX)).file.name for _ in range(2)]
        assert names == ["a.txt", "a_(2).txt"]

    async def test_replace_keeps_the_id_and_has_the_new_content(self, client: Files, folder: pb.Folder) -> None:
        first = (await client.upload(folder.id, metadata='{"v": 1}')).file
        answer = await client.upload(folder.id, content=b"new", duplicate_handling=REPLACE)
        replaced = answer.file
        assert (replaced.id, answer.outcome, replaced.revision) == (first.id, rpc.UPLOAD_OUTCOME_REPLACED, 2)
        assert (replaced.size_bytes, replaced.HasField("metadata")) == (3, False)
        assert replaced.create_time == first.create_time
        assert await client.content(first.id) == b"new"
        counted = await client.get_folder(folder.id)
        assert (counted.file_count, counted.size_bytes) == (1, 3)

    async def test_equal_content_is_not_a_new_revision(self, client: Files, folder: pb.Folder) -> None:
        first = (await client.upload(folder.id)).file
        answer = await client.upload(folder.id, duplicate_handling=REPLACE, metadata='{"v": 2}')
        assert (answer.file.id, answer.outcome) == (first.id, rpc.UPLOAD_OUTCOME_REPLACED)
        assert (answer.file.revision, answer.file.metadata) == (1, '{"v": 2}')

    @pytest.mark.parametrize("handling", [SKIP, ERROR, SUFFIX, REPLACE])
    async def test_same_file_many_times_at_once(
        self, client: Files, folder: pb.Folder, handling: rpc.DuplicateHandling.ValueType
    ) -> None:
        calls = [client.upload(folder.id, duplicate_handling=handling) for _ in range(AT_ONCE)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        outcomes = Counter(
            getattr(answer, "reason", "") if isinstance(answer, BaseException) else answer.outcome for answer in answers
        )
        rest = {
            SKIP: rpc.UPLOAD_OUTCOME_SKIPPED,
            ERROR: "ALREADY_EXISTS",
            SUFFIX: rpc.UPLOAD_OUTCOME_CREATED,
            REPLACE: rpc.UPLOAD_OUTCOME_REPLACED,
        }[handling]
        assert outcomes == Counter({rpc.UPLOAD_OUTCOME_CREATED: 1}) + Counter({rest: AT_ONCE - 1})
        names = await client.names()
        suffixed = [f"notes_({number}).txt" for number in range(1, AT_ONCE)]
        assert sorted(names) == sorted(["notes.txt", *(suffixed if handling == SUFFIX else [])])
        counted = await client.get_folder(folder.id)
        assert (counted.file_count, counted.size_bytes) == (len(names), 8 * len(names))
        listed = await client.files.ListFiles(rpc.ListFilesRequest())
        assert {await client.content(file.id) for file in listed.files} == {b"one\ntwo\n"}
        assert {file.revision for file in listed.files} == {1}
