"""Parses a document of a test, which must be read or refused."""

import json
from dataclasses import replace
from typing import Any

from mnemesh_files.parsers.document import DEFAULT_LIMITS, Cause, ParsedDocument, ParseLimits
from mnemesh_files.parsers.formats import detect
from mnemesh_files.parsers.inside.entry import parse


def answer_of(content: bytes, name: str = "document", limits: ParseLimits = DEFAULT_LIMITS) -> dict[str, Any]:
    detected = detect(content, name)
    answer: dict[str, Any] = json.loads(
        parse(content, detected.format.value, detected.file_type.media_type, limits.to_values())
    )
    return answer


def parsed_from(content: bytes, name: str = "document", **limits: Any) -> ParsedDocument:
    answer = answer_of(content, name, replace(DEFAULT_LIMITS, **limits))
    assert "document" in answer, answer
    return ParsedDocument.from_value(answer["document"])


def refusal_of(content: bytes, name: str = "document", **limits: Any) -> tuple[Cause, str]:
    answer = answer_of(content, name, replace(DEFAULT_LIMITS, **limits))
    assert "message" in answer, answer
    return Cause(answer["cause"]), answer["message"]
