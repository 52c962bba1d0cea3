"""The pure rules of inserts and of changes of embedders."""

from datetime import UTC, datetime

import pytest
from mnemesh_archival.model.archives import EmbedderChange, decide_embedder_change
from mnemesh_archival.model.inserts import InsertEntry, InsertTarget, new_passage, plan_inserts
from mnemesh_archival.model.passages import Passage, content_hash

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def passage(id_: str, text: str) -> Passage:
    return new_passage(Passage(text=text), InsertTarget(archive_id="a"), id_, 0, NOW)


def test_known_ids_are_errors_for_the_caller_and_replays_for_the_service() -> None:
    batch = [passage("p1", "an oak"), passage("p2", "an elm"), None, passage("p3", "an ash")]
    plan = plan_inserts(batch, "archive-1", {"p1", "p2"}, {"p1"}, None)
    assert plan.entries == (InsertEntry(reason="ALREADY_EXISTS"), InsertEntry("p2"), InsertEntry(), InsertEntry("p3"))
    assert [(each.id, each.archive_id) for each in plan.new] == [("p3", "archive-1")]


def test_duplicates_are_found_in_the_archive_and_in_the_batch() -> None:
    batch = [passage("p1", "an oak"), passage("p2", "an elm"), passage("p3", "an elm")]
    plan = plan_inserts(batch, "archive-1", (), (), {content_hash("an oak"): "p0"})
    assert plan.entries == (InsertEntry("p0", duplicate=True), InsertEntry("p2"), InsertEntry("p2", duplicate=True))
    assert [each.id for each in plan_inserts(batch, "archive-1", (), (), None).new] == ["p1", "p2", "p3"]


def test_id_that_occurs_twice_in_a_batch_is_stored_once() -> None:
    plan = plan_inserts([passage("p1", "an oak"), passage("p1", "an elm")], "a", (), {"p1"}, None)
    assert plan.entries == (InsertEntry("p1"), InsertEntry(reason="ALREADY_EXISTS"))
    assert [each.text for each in plan.new] == ["an oak"]


@pytest.mark.parametrize(
    ("in_progress", "wanted", "has_passages", "change"),
    [
        (None, "new", False, EmbedderChange.SET),
        (None, "new", True, EmbedderChange.START),
        ("new", "new", True, EmbedderChange.NONE),
        ("new", "newer", True, EmbedderChange.START),
        ("new", "current", True, EmbedderChange.CANCEL),
        (None, "current", True, EmbedderChange.CANCEL),
    ],
)
def test_changes_of_embedders(in_progress: str | None, wanted: str, has_passages: bool, change: EmbedderChange) -> None:
    assert decide_embedder_change("current", in_progress, wanted, has_passages=has_passages) is change
