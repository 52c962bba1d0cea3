"""The vectors of Letta's passages, as PostgreSQL and SQLite hold them."""

import struct

import pytest
from mnemesh_letta.database.records import same_model, vector_of

VALUES = [0.5, -1.25, 2.0]
PADDED = VALUES + [0.0] * 4093


def as_bytes(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


@pytest.mark.parametrize("stored", [as_bytes(VALUES), as_bytes(PADDED), str(VALUES), str(PADDED)])
def test_the_zeros_that_fill_a_vector_up_are_removed(stored: object) -> None:
    assert vector_of(stored, 3) == VALUES


@pytest.mark.parametrize(
    ("stored", "dimensions"),
    [
        (as_bytes(VALUES), 4),
        (as_bytes(VALUES), None),
        (as_bytes([*VALUES, 0.0]), 3),
        (as_bytes([0.0] * 4096), 3),
        (as_bytes([*VALUES[:2], float("nan")]), 3),
        (as_bytes([*PADDED[:-1], 1.0]), 3),
        (b"abc", 3),
        ("no vector", 3),
        (None, 3),
    ],
    ids=[
        "too short",
        "no dimensions",
        "another length",
        "zeros only",
        "not finite",
        "no zeros",
        "no floats",
        "a text",
        "nothing",
    ],
)
def test_what_is_no_vector_of_these_dimensions_is_left_out(stored: object, dimensions: int | None) -> None:
    assert vector_of(stored, dimensions) is None


@pytest.mark.parametrize(
    ("handle", "expected"),
    [
        ("openai/text-embedding-3-small", "openai/text-embedding-3-small"),
        ("text-embedding-3-small", "openai/text-embedding-3-small"),
        ("proxy/openai/text-embedding-3-small", "openai/text-embedding-3-small"),
        ("hugging-face/BAAI/bge-m3", "tei/bge-m3"),
        ("ollama/bge-m3:latest", "tei/bge-m3"),
        ("openai/text-embedding-3-large", None),
        ("letta/letta-free", None),
        ("", None),
    ],
)
def test_embedder_with_the_same_model_is_found(handle: str, expected: str | None) -> None:
    known = {"mnemesh/hashing-256", "openai/text-embedding-3-small", "tei/bge-m3"}
    assert same_model(handle, known) == expected
