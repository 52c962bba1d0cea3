"""The edits: their results, and the errors with their texts, which agents read."""

import pytest
from mnemesh_blocks.model.edits import Append, Edit, InsertLine, Patch, ReplaceAll, ReplaceUnique, Rethink
from mnemesh_kit.errors import MnemeshError


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (Append("b"), "a", "a\nb"),
        (Append("b"), "", "b"),
        (ReplaceAll("a", "x"), "a-a\na", "x-x\nx"),
        (ReplaceAll("a", ""), "abab", "bb"),
        (ReplaceUnique("b", "x"), "a\nb\nc", "a\nx\nc"),
        (ReplaceUnique("a\nb", "x"), "a\nb\nc", "x\nc"),
        (InsertLine(0, "x"), "a\nb", "x\na\nb"),
        (InsertLine(1, "x\ny"), "a\nb", "a\nx\ny\nb"),
        (InsertLine(2, "x"), "a\nb", "a\nb\nx"),
        (InsertLine(-1, "x"), "a\nb", "a\nb\nx"),
        (InsertLine(-1, "x"), "", "x"),
        (InsertLine(0, "x"), "", "x"),
        (Rethink("new"), "old", "new"),
        (Rethink(""), "old", ""),
    ],
)
def test_edit_returns_the_new_value(edit: Edit, before: str, after: str) -> None:
    assert edit.apply(before, "notes") == after


@pytest.mark.parametrize("edit", [ReplaceUnique("b", "x"), ReplaceAll("b", "x"), InsertLine(1, "x"), Append("x")])
def test_edits_keep_tabs_elsewhere(edit: Edit) -> None:
    assert "\tindented\t" in edit.apply("\tindented\t\nb", "notes")


def test_tabs_in_the_old_text_are_literal() -> None:
    assert ReplaceUnique("\tx", "y").apply("\tx\n        x", "notes") == "y\n        x"


def _error(edit: Edit, value: str) -> MnemeshError:
    with pytest.raises(MnemeshError) as caught:
        edit.apply(value, "notes")
    return caught.value


def test_missing_old_text_is_refused() -> None:
    error = _error(ReplaceUnique("zebra", "x"), "a")
    assert error.reason == "BLOCK_TEXT_NOT_FOUND"
    assert error.message == (
        "No replacement was performed, old_str `zebra` did not appear verbatim in memory block with label `notes`."
    )
    error = _error(ReplaceAll("zebra", "x"), "a")
    assert error.reason == "BLOCK_TEXT_NOT_FOUND"
    assert error.message == "Old content 'zebra' not found in memory block 'notes'"


def test_ambiguous_old_text_is_refused_with_its_lines() -> None:
    error = _error(ReplaceUnique("tea", "x"), "tea\nmilk\nmore tea and tea")
    assert error.reason == "BLOCK_TEXT_AMBIGUOUS"
    assert error.message == (
        "No replacement was performed. Multiple occurrences of old_str `tea` in lines [1, 3]. "
        "Please ensure it is unique."
    )
    assert error.metadata["lines"] == "1,3"
    in_one_line = _error(ReplaceUnique("tea", "x"), "tea and tea")
    assert (in_one_line.reason, in_one_line.metadata["lines"]) == ("BLOCK_TEXT_AMBIGUOUS", "1")


def test_lines_of_a_multi_line_text_are_those_of_its_first_line() -> None:
    error = _error(ReplaceUnique("a\nb", "x"), "-\na\nb\n-\na\nb")
    assert error.metadata["lines"] == "2,5"


@pytest.mark.parametrize("line", [3, -2, 99])
def test_line_out_of_range_is_refused(line: int) -> None:
    error = _error(InsertLine(line, "x"), "a\nb")
    assert error.reason == "BLOCK_LINE_OUT_OF_RANGE"
    assert error.message == (
        f"Invalid `insert_line` parameter: {line}. It should be within the range of lines of the memory block: "
        "[0, 2], or -1 to append to the end of the memory block."
    )


@pytest.mark.parametrize(
    ("edit", "name", "field"),
    [
        (Append("1→ x"), "content", "append.text"),
        (ReplaceAll("1→ x", "y"), "old_content", "replace_all.old_text"),
        (ReplaceAll("x", "1→y"), "new_content", "replace_all.new_text"),
        (ReplaceUnique("  12→ x", "y"), "old_str", "replace_unique.old_text"),
        (ReplaceUnique("x", "a\n 3→\ty"), "new_str", "replace_unique.new_text"),
        (InsertLine(0, "1→ x"), "insert_text", "insert_line.text"),
        (Rethink("fine\n2→ not"), "new_memory", "rethink.value"),
        (Patch("@@\n-1→ x\n+y"), "Patch", "patch.patch"),
    ],
)
def test_displayed_line_numbers_are_refused_in_every_edit(edit: Edit, name: str, field: str) -> None:
    error = _error(edit, "x")
    assert error.reason == "BLOCK_LINE_NUMBER_PREFIX"
    assert error.field == field
    assert error.message == (
        f"{name} contains a line number prefix, which is not allowed. Do not include line numbers when calling "
        "memory tools (line numbers are for display purposes only)."
    )


def test_arrow_without_a_line_number_is_accepted() -> None:
    assert Append("see 3→4, or → x").apply("", "notes") == "see 3→4, or → x"


@pytest.mark.parametrize("edit", [ReplaceUnique("", "x"), ReplaceAll("", "x"), Append("a\0b"), Rethink("\0")])
def test_empty_old_text_and_nul_characters_are_refused(edit: Edit) -> None:
    assert _error(edit, "a").code.name == "INVALID_ARGUMENT"


VALUE = "one\ntwo\nthree\ntwo and a half\n-- four"


@pytest.mark.parametrize(
    ("patch", "after"),
    [
        ("@@ -1,2 +1,2 @@\n one\n-two\n+2", VALUE.replace("two\nthree", "2\nthree")),
        ("--- a\n+++ b\n@@\n-three\n+3\n@@\n-one\n+1", VALUE.replace("three", "3").replace("one", "1")),
        (
            "*** Begin Patch\n*** Update File: notes\n@@\n one\n+1.5\n two\n*** End Patch\n",
            VALUE.replace("one", "one\n1.5"),
        ),
        ("@@\n+five", VALUE + "\nfive"),
        ("+five\n+six\n", VALUE + "\nfive\nsix"),
        ("@@\n--- four\n", VALUE.removesuffix("\n-- four")),
    ],
)
def test_patch_applies_by_context(patch: str, after: str) -> None:
    assert Patch(patch).apply(VALUE, "notes") == after


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        ("@@\n-four\n+4", "expected hunk context not found:\nfour"),
        ("@@\n-x\n+y", "matched multiple places:\nx"),
        ("@@\n x", "no hunks"),
        ("", "no hunks"),
        ("@@\nstray", "stray"),
    ],
)
def test_patch_that_does_not_apply_names_the_reason(patch: str, text: str) -> None:
    error = _error(Patch(patch), "x\na\nx")
    assert error.reason == "BLOCK_PATCH_FAILED"
    assert text in error.message
