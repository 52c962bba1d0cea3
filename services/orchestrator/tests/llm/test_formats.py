"""Structured answers that cannot be parsed."""

import pytest
from mnemesh_orchestrator.llm.schemas import text_problem
from mnemesh_orchestrator.model.models import ResponseFormat

ANYTHING = ResponseFormat("json_schema", "thing", '{"properties": {"a": {"type": "number"}}}')


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a": "\\ud800"}', '{"a": ' + "1" * 5_000 + "}"])
def test_unparsable_answer_is_a_problem(text: str) -> None:
    assert text_problem(text, ANYTHING)
    assert text_problem('{"b": "\\ud83d\\ude00"}', ANYTHING) is None
