"""Agents: their folders, the windows into their files, limits, directories, searches and citations."""

import asyncio
from collections.abc import Callable

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.files.v1 import agent_files_service_pb2 as rpc
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import folders_service_pb2 as folders_rpc
from mnemesh.types.v1.paging_pb2 import SORT_ORDER_DESCENDING
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.ids import new_id

from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.suites.files.calls import REPLACE, AgentFiles, AgentFilesCases, Files, reason

LINES = "\n".join(f"line {number}" for number in range(1, 11))


class AgentFolders(AgentFilesCases):
    """Folders of agents and what their prompts show."""

    async def test_an_agent_without_folders_has_revision_zero(self, agent: AgentFiles) -> None:
        found = await agent.directories()
        assert not found.not_modified
        assert found.directories == pb.Directories(
            agent_id=agent.id, limits=pb.FileLimits(max_files_open=5, per_file_view_window_char_limit=50_000)
        )
        assert (await agent.directories(if_revision=0)).not_modified

    async def test_a_folder_brings_its_present_and_future_files(
        self, agent: AgentFiles, client: Files, folder: pb.Folder
    ) -> None:
        await agent.file(folder.id, "b.txt")
        attached = await agent.attach(folder.id)
        assert (attached.folder.name, attached.folder_count) == ("reports", 1)
        assert attached.directories_revision == await agent.revision()
        await agent.file(folder.id, "a.txt")
        assert [file.name for file in await agent.files()] == ["reports/b.txt", "reports/a.txt"]
        found = (await agent.directories()).directories
        (shown,) = found.directories
        assert ([file.name for file in shown.files], shown.file_count) == (["reports/a.txt", "reports/b.txt"], 2)
        assert found.open_files == 0
        again = await agent.attach(folder.id)
        assert (again.folder_count, again.directories_revision) == (1, found.revision)
        held = await client.folders.ListFolderAgents(folders_rpc.ListFolderAgentsRequest(folder_id=folder.id))
        assert list(held.agent_ids) == [agent.id]
        assert await client.names(filter={"agent_id": agent.id}) == ["b.txt", "a.txt"]

    async def test_every_change_that_the_prompt_shows_raises_the_revision(
        self, agent: AgentFiles, client: Files
    ) -> None:
        first, second = await client.folder("first"), await client.folder("second")
        revisions = [0]

        async def raised(what: str) -> None:
            revisions.append(await agent.revision())
            assert revisions[-1] > revisions[-2], what
            assert (await agent.directories(if_revision=revisions[-1])).not_modified

        await agent.attach(first.id)
        await raised("attach")
        await agent.attach(second.id)
        await raised("attach another")
        file = await agent.file(first.id, "a.txt")
        await raised("upload")
        await agent.open("first/a.txt")
        await raised("open")
        await agent.limit(3)
        await raised("limits")
        renamed = pb.Folder(id=first.id, name="renamed")
        await client.folders.UpdateFolder(
            folders_rpc.UpdateFolderRequest(folder=renamed, update_mask=FieldMask(paths=["name"]))
        )
        await raised("rename")
        assert list(await agent.read_shown()) == ["renamed/a.txt"]
        await agent.close("renamed/a.txt")
        await raised("close")
        await client.delete(file)
        await raised("delete file")
        await agent.detach(second.id)
        await raised("detach")
        await client.delete_folder(first.id)
        await raised("delete folder")
        assert not (await agent.directories()).directories.directories

    async def test_detaching_forgets_windows_and_keeps_the_folder(
        self, agent: AgentFiles, client: Files, folder: pb.Folder
    ) -> None:
        await agent.file(folder.id, "a.txt", LINES)
        await agent.attach(folder.id)
        await agent.open("a.txt", offset=2)
        assert (await agent.detach(folder.id)).folder_count == 0
        assert await reason(agent.detach(folder.id)) == "NOT_FOUND"
        assert await reason(agent.open("reports/a.txt")) == "FILE_NOT_ATTACHED"
        assert (await client.get_folder(folder.id)).file_count == 1
        await agent.attach(folder.id)
        (file,) = await agent.files()
        assert not file.is_open
        assert not file.HasField("view")

    async def test_a_deleted_file_is_gone_and_a_replaced_one_begins_again(
        self, agent: AgentFiles, client: Files, folder: pb.Folder
    ) -> None:
        gone = await agent.file(folder.id, "gone.txt", LINES)
        kept = await agent.file(folder.id, "kept.txt", LINES)
        await agent.attach(folder.id)
        await agent.open("gone.txt", "kept.txt", offset=4, length=2)
        await client.delete(gone)
        assert list(await agent.read_shown()) == ["reports/kept.txt"]
        await client.upload(folder.id, "kept.txt", b"new\ntext", duplicate_handling=REPLACE)
        (pending,) = (await agent.read_shown()).values()
        assert "line" not in pending
        await agent.parse(kept, "new\ntext")
        assert await agent.read_shown() == {
            "reports/kept.txt": "[Viewing file start (out of 2 lines)]\n1: new\n2: text"
        }

    async def test_attachments_are_repeatable_and_checked(
        self, agent: AgentFiles, client: Files, folder: pb.Folder
    ) -> None:
        key, other = new_id("request"), await client.folder("other")
        first = await agent.attach(folder.id, key)
        await agent.attach(other.id)
        assert await agent.attach(folder.id, key) == first
        assert await reason(agent.attach(other.id, key)) == "REQUEST_ID_REUSED"
        assert await reason(agent.attach(new_id("source"))) == "NOT_FOUND"
        assert await reason(agent.attach("source-1")) == "INVALID_ARGUMENT"
        request = rpc.ListAgentFoldersRequest(agent_id=agent.id, page_size=1)
        page = await agent.stub.ListAgentFolders(request)
        assert [each.name for each in page.folders] == ["reports"]
        request.page_token = page.next_page_token
        assert [each.name for each in (await agent.stub.ListAgentFolders(request)).folders] == ["other"]
        by_name = rpc.ListAgentFoldersRequest(agent_id=agent.id, order_by=rpc.AGENT_FOLDER_ORDER_BY_NAME)
        assert [each.name for each in (await agent.stub.ListAgentFolders(by_name)).folders] == ["other", "reports"]

    async def test_organizations_share_nothing(self, agent: AgentFiles, folder: pb.Folder) -> None:
        await agent.file(folder.id, "a.txt")
        await agent.attach(folder.id)
        with as_principal(Principal(new_id("org"), new_id("user"))):
            assert await agent.files() == []
            assert (await agent.directories()).directories.revision == 0
            assert await reason(agent.attach(folder.id)) == "NOT_FOUND"

    async def test_an_erased_agent_holds_nothing_and_refuses_writes(self, agent: AgentFiles, folder: pb.Folder) -> None:
        await agent.file(folder.id, "a.txt")
        await agent.attach(folder.id)
        await agent.open("a.txt")
        request = rpc.EraseAgentRequest(request_id=new_id("request"), agent_id=agent.id)
        erased = await agent.stub.EraseAgent(request)
        assert (erased.detached_folders, erased.detached_files) == (1, 1)
        assert await agent.stub.EraseAgent(request) == erased
        assert (await agent.stub.EraseAgent(rpc.EraseAgentRequest(agent_id=agent.id))).detached_folders == 0
        assert await agent.files() == []
        for write in (agent.attach(folder.id), agent.limit(3), agent.close(all=True)):
            assert await reason(write) == "ERASED"

    async def test_batches_are_in_the_requested_order(
        self, agent: AgentFiles, new_agent: Callable[[], AgentFiles], folder: pb.Folder
    ) -> None:
        other = new_agent()
        await other.attach(folder.id)
        found = await agent.stub.BatchGetDirectories(rpc.BatchGetDirectoriesRequest(agent_ids=[other.id, agent.id]))
        assert [(each.agent_id, len(each.directories)) for each in found.directories] == [(other.id, 1), (agent.id, 0)]


class Windows(AgentFilesCases):
    """Opening and closing files, and limits."""

    async def test_windows_have_true_line_numbers(self, agent: AgentFiles, folder: pb.Folder) -> None:
        await agent.file(folder.id, "a.txt", LINES)
        await agent.attach(folder.id)
        opened = (await agent.open("reports/a.txt", offset=2, length=2)).opened[0]
        assert opened.file.visible_content == "[Viewing lines 3 to 4 (out of 10 lines)]\n3: line 3\n4: line 4"
        assert (opened.file.view.start_line, opened.file.view.end_line) == (3, 4)
        assert not opened.HasField("previous_view")
        again = (await agent.open("a.txt", offset=8)).opened[0]
        assert again.file.visible_content == "[Viewing lines 9 to end (out of 10 lines)]\n9: line 9\n10: line 10"
        assert (again.previous_view.start_line, again.previous_view.end_line) == (3, 4)
        whole = (await agent.open("a.txt", length=100)).opened[0]
        assert whole.file.view.end_line == 10
        assert whole.file.visible_content.startswith("[Viewing lines 1 to 10 (out of 10 lines)]\n1: line 1\n")
        assert (await agent.files(include_content=True))[0].visible_content == whole.file.visible_content

    async def test_the_least_recently_used_files_are_closed(self, agent: AgentFiles, folder: pb.Folder) -> None:
        for name in "abcd":
            await agent.file(folder.id, f"{name}.txt", f"text of {name}")
        await agent.attach(folder.id)
        await agent.limit(2)
        await agent.open("a.txt")
        await agent.open("b.txt")
        await agent.grep("text of a")
        opened = await agent.open("c.txt")
        assert list(opened.evicted) == ["reports/b.txt"]
        assert sorted(await agent.read_shown()) == ["reports/a.txt", "reports/c.txt"]
        both = await agent.open("b.txt", "d.txt")
        assert list(both.evicted) == ["reports/a.txt", "reports/c.txt"]
        lower = await agent.limit(1)
        assert list(lower.evicted) == ["reports/b.txt"]
        removed = await agent.stub.SetFileLimits(rpc.SetFileLimitsRequest(agent_id=agent.id))
        assert removed.limits.max_files_open == 5
        alone = await agent.open("a.txt", close_all_others=True)
        assert (list(alone.closed_others), list(alone.evicted)) == (["reports/d.txt"], [])

    async def test_opening_is_all_or_none(self, agent: AgentFiles, client: Files, folder: pb.Folder) -> None:
        await agent.file(folder.id, "a.txt", LINES)
        await client.upload(folder.id, "new.txt", b"text")
        await agent.attach(folder.id)
        revision = await agent.revision()
        absent = await catch_refusal(agent.open("a.txt", "b.txt"))
        assert (absent.reason, absent.metadata["file_name"]) == ("FILE_NOT_ATTACHED", "b.txt")
        assert "reports/a.txt, reports/new.txt" in absent.metadata["file_names"]
        unready = await catch_refusal(agent.open("a.txt", "new.txt"))
        assert (unready.reason, unready.metadata["status"]) == ("FILE_NOT_READY", "PENDING")
        assert unready.metadata["file_name"] == "reports/new.txt"
        too_many = await catch_refusal(agent.open(*["a.txt"] * 6))
        assert (too_many.reason, too_many.metadata["limit"]) == ("INVALID_ARGUMENT", "5")
        for wrong in (
            agent.open(),
            agent.open("a.txt", "reports/a.txt"),
            agent.open("a.txt", offset=-1),
            agent.open("a.txt", length=0),
            agent.open("a.txt", offset=10),
            agent.limit(0),
            agent.limit(5, 0),
            agent.close(),
            agent.close("a.txt", all=True),
        ):
            assert await reason(wrong) == "INVALID_ARGUMENT"
        assert await agent.revision() == revision

    async def test_a_name_without_folder_must_be_unambiguous(self, agent: AgentFiles, client: Files) -> None:
        for name in ("one", "two"):
            folder = await client.folder(name)
            await agent.file(folder.id, "a.txt", name)
            await agent.attach(folder.id)
        ambiguous = await catch_refusal(agent.open("a.txt"))
        assert ambiguous.metadata["file_names"] == "one/a.txt, two/a.txt"
        assert (await agent.open("two/a.txt")).opened[0].file.visible_content.endswith("1: two")

    async def test_a_repeat_returns_the_first_result(self, agent: AgentFiles, folder: pb.Folder) -> None:
        await agent.file(folder.id, "a.txt", LINES)
        await agent.file(folder.id, "b.txt", LINES)
        await agent.attach(folder.id)
        await agent.limit(1)
        await agent.open("b.txt")
        key = new_id("request")
        first = await agent.open("a.txt", offset=1, length=1, request_id=key)
        await agent.open("b.txt")
        again = await agent.open("a.txt", offset=1, length=1, request_id=key)
        assert again.opened[0].file.visible_content == first.opened[0].file.visible_content
        assert (list(again.evicted), again.directories_revision) == (list(first.evicted), first.directories_revision)
        assert list(await agent.read_shown()) == ["reports/b.txt"]

    async def test_limits_hold_when_files_are_opened_at_once(self, agent: AgentFiles, folder: pb.Folder) -> None:
        for number in range(8):
            await agent.file(folder.id, f"{number}.txt", "text")
        await agent.attach(folder.id)
        await agent.limit(3)
        await asyncio.gather(*(agent.open(f"{number}.txt") for number in range(8)))
        found = (await agent.directories()).directories
        assert (found.open_files, len(await agent.read_shown())) == (3, 3)

    async def test_long_windows_are_truncated_at_a_line(self, agent: AgentFiles, folder: pb.Folder) -> None:
        await agent.file(folder.id, "a.txt", "\n".join(f"{n:03} " + "x" * 50 for n in range(200)))
        await agent.attach(folder.id)
        await agent.limit(5, 500)
        file = (await agent.open("a.txt")).opened[0].file
        assert file.truncated
        assert len(file.visible_content) <= 500
        *rows, mark, note = file.visible_content.split("\n")
        assert rows[-1] == f"{len(rows) - 1}: {len(rows) - 2:03} " + "x" * 50
        assert (mark, note) == (
            "...[TRUNCATED]",
            "# NOTE: This block is truncated, use functions to view the full content.",
        )

    async def test_lists_of_files_are_filtered_and_ordered(self, agent: AgentFiles, client: Files) -> None:
        first, second = await client.folder("first"), await client.folder("second")
        for folder, name in ((first, "b.txt"), (second, "a.txt"), (first, "c.txt")):
            await agent.file(folder.id, name)
        await agent.attach(first.id)
        await agent.attach(second.id)
        await agent.open("c.txt")
        await agent.open("a.txt")
        names = ["first/b.txt", "first/c.txt", "second/a.txt"]
        assert [file.name for file in await agent.files(order_by=rpc.AGENT_FILE_ORDER_BY_NAME)] == names
        used = await agent.files(order_by=rpc.AGENT_FILE_ORDER_BY_LAST_ACCESS_TIME, order=SORT_ORDER_DESCENDING)
        assert [file.name for file in used] == ["second/a.txt", "first/c.txt", "first/b.txt"]
        assert [file.name for file in await agent.files(is_open=False)] == ["first/b.txt"]
        assert {file.name for file in await agent.files(is_open=True)} == {"first/c.txt", "second/a.txt"}
        assert [file.name for file in await agent.files(folder_id=second.id)] == ["second/a.txt"]
        request = rpc.ListAgentFilesRequest(
            agent_id=agent.id, page_size=2, order_by=rpc.AGENT_FILE_ORDER_BY_LAST_ACCESS_TIME
        )
        page = await agent.stub.ListAgentFiles(request)
        request.page_token = page.next_page_token
        rest = await agent.stub.ListAgentFiles(request)
        assert [file.name for file in (*page.files, *rest.files)] == ["first/c.txt", "second/a.txt", "first/b.txt"]


class FileSearches(AgentFilesCases):
    """Patterns and citations."""

    async def test_grep_pages_through_matches_in_order(self, agent: AgentFiles, folder: pb.Folder) -> None:
        await agent.file(folder.id, "b.txt", "\n".join(f"Match {n}" if n % 2 else "-" for n in range(60)))
        await agent.file(folder.id, "a.py", "def match():\n    pass", page_starts=(1, 2))
        await agent.file(folder.id, "empty.txt", "")
        await agent.attach(folder.id)
        first = await agent.grep("match")
        assert (first.total_matches, first.files_searched, first.next_offset) == (31, 3, 20)
        assert [(each.file_name, each.count) for each in first.files] == [("reports/b.txt", 30), ("reports/a.py", 1)]
        match = first.matches[0]
        assert (match.file_name, match.line, match.text, match.page) == ("reports/a.py", 1, "def match():", 1)
        assert (list(match.lines_before), list(match.lines_after)) == ([], ["    pass"])
        rest = await agent.grep("match", offset=20)
        assert (len(rest.matches), rest.HasField("next_offset")) == (11, False)
        assert [each.line for each in (*first.matches, *rest.matches)][1:] == list(range(2, 61, 2))
        only = await agent.grep("MATCH", include="*.py", context_lines=0)
        assert [(each.file_name, list(each.lines_after)) for each in only.matches] == [("reports/a.py", [])]
        assert (await agent.grep("match", offset=40)).total_matches == 31

    async def test_grep_names_what_it_could_not_search(
        self, agent: AgentFiles, client: Files, folder: pb.Folder
    ) -> None:
        await client.upload(folder.id, "new.txt", b"text")
        await agent.attach(folder.id)
        found = await agent.grep("text")
        assert [(each.file_name, each.cause) for each in found.skipped] == [
            ("reports/new.txt", rpc.SKIP_CAUSE_NOT_READY)
        ]

    async def test_grep_stops_at_a_thousand_matches(self, agent: AgentFiles, folder: pb.Folder) -> None:
        await agent.file(folder.id, "a.txt", "\n".join(["x"] * 1001))
        await agent.attach(folder.id)
        found = await agent.grep("x", offset=990)
        assert (found.total_matches, found.capped, len(found.matches)) == (1000, True, 10)

    @pytest.mark.parametrize(
        "options",
        [
            {"pattern": ""},
            {"pattern": "("},
            {"pattern": r"(a)\1"},
            {"pattern": "(?=a)"},
            {"pattern": "a" * 1001},
            {"pattern": "a", "include": "["},
            {"pattern": "a", "context_lines": 21},
            {"pattern": "a", "limit": 101},
            {"pattern": "a", "offset": -1},
            {"pattern": "(((x{1000}){1000}){1000})"},
        ],
    )
    async def test_grep_refuses_bad_input(self, agent: AgentFiles, options: dict[str, object]) -> None:
        error = await catch_refusal(agent.grep(**options))  # type: ignore[arg-type]
        assert error.code.name == "INVALID_ARGUMENT"
        assert error.field in options or error.field == "pattern"

    async def test_citations_resolve_to_lines_and_pages(self, agent: AgentFiles, folder: pb.Folder) -> None:
        file = await agent.file(folder.id, "a [v2].pdf", LINES, page_starts=(1, 5))
        await agent.attach(folder.id)
        text = "Ünïcode [reports/a [v2].pdf:4-6], [a [v2].pdf:2] [reports/a [v2].pdf:99] [reports/b.pdf:1], x[1:2]."
        found = await agent.stub.ResolveCitations(rpc.ResolveCitationsRequest(agent_id=agent.id, text=text))
        first, second, *unresolved = found.citations
        assert text[first.start : first.end] == "[reports/a [v2].pdf:4-6]"
        assert (first.file_id, first.start_line, first.end_line) == (file, 4, 6)
        assert (first.start_page, first.end_page, first.quote) == (1, 2, "line 4\nline 5\nline 6")
        assert (second.file_name, second.quote) == ("reports/a [v2].pdf", "line 2")
        assert [(each.file_name, each.HasField("file_id"), each.quote) for each in unresolved] == [
            ("reports/a [v2].pdf", False, ""),
            ("reports/b.pdf", False, ""),
        ]
        too_long = rpc.ResolveCitationsRequest(agent_id=agent.id, text="x" * (1024 * 1024 + 1))
        assert await reason(agent.stub.ResolveCitations(too_long)) == "INVALID_ARGUMENT"


class Openings(AgentFilesCases):
    """Files that are opened because their folder is attached."""

    async def test_an_attachment_opens_the_ready_files(
        self, agent: AgentFiles, client: Files, folder: pb.Folder
    ) -> None:
        await agent.file(folder.id, "b.txt", "text of b")
        await agent.file(folder.id, "a.txt", "text of a")
        await client.upload(folder.id, "new.txt", b"text")
        attached = await agent.attach(folder.id, open_files=True)
        shown = await agent.read_shown()
        assert list(shown) == ["reports/a.txt", "reports/b.txt"]
        assert shown["reports/b.txt"].endswith("1: text of b")
        assert attached.directories_revision == await agent.revision()

    async def test_an_attachment_opens_no_more_than_the_limit(self, agent: AgentFiles, client: Files) -> None:
        first, second = await client.folder("first"), await client.folder("second")
        await agent.limit(3)
        for folder, names in ((first, "ab"), (second, "dcfe")):
            for name in names:
                await agent.file(folder.id, f"{name}.txt")
        await agent.attach(first.id, open_files=True)
        assert list(await agent.read_shown()) == ["first/a.txt", "first/b.txt"]
        await agent.attach(second.id, open_files=True)
        assert list(await agent.read_shown()) == ["second/c.txt", "second/d.txt", "second/e.txt"]

    async def test_a_repeat_opens_no_file_again(self, agent: AgentFiles, folder: pb.Folder) -> None:
        await agent.file(folder.id, "a.txt")
        key = new_id("request")
        first = await agent.attach(folder.id, key, open_files=True)
        await agent.close("a.txt")
        assert await agent.attach(folder.id, key, open_files=True) == first
        revision = await agent.revision()
        again = await agent.attach(folder.id, open_files=True)
        assert (again.folder_count, again.directories_revision) == (1, revision)
        assert await agent.read_shown() == {}

    async def test_an_attached_folder_can_begin_to_open_files(self, agent: AgentFiles, folder: pb.Folder) -> None:
        for name in ("a.txt", "b.txt"):
            await agent.file(folder.id, name)
        await agent.attach(folder.id)
        await agent.open("a.txt")
        await agent.close("a.txt")
        assert await agent.read_shown() == {}
        await agent.attach(folder.id, open_files=True)
        assert list(await agent.read_shown()) == ["reports/b.txt"]

    async def test_a_detached_folder_closes_its_files(self, agent: AgentFiles, folder: pb.Folder) -> None:
        await agent.file(folder.id, "a.txt")
        await agent.attach(folder.id, open_files=True)
        await agent.detach(folder.id)
        assert await agent.files() == []
        await agent.attach(folder.id)
        assert await agent.read_shown() == {}

    async def test_a_refused_attachment_opens_nothing(self, agent: AgentFiles, folder: pb.Folder) -> None:
        await agent.file(folder.id, "a.txt")
        assert await reason(agent.attach(new_id("source"), open_files=True)) == "NOT_FOUND"
        assert await reason(agent.attach("reports", open_files=True)) == "INVALID_ARGUMENT"
        await agent.stub.EraseAgent(rpc.EraseAgentRequest(agent_id=agent.id))
        assert await reason(agent.attach(folder.id, open_files=True)) == "ERASED"
        assert (await agent.directories()).directories.open_files == 0
