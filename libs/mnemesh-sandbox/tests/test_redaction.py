"""Values of secrets in texts: replaced as they are, and as JSON, Python and URLs write them."""

import json
from urllib.parse import quote, quote_plus

import pytest
from mnemesh_sandbox.redaction import Redactor

KEY = 'pass "wörd"/\n+x'


@pytest.mark.parametrize(
    "form",
    [
        *(KEY, json.dumps(KEY)[1:-1], json.dumps(KEY, ensure_ascii=False)[1:-1], repr(KEY)[1:-1], ascii(KEY)[1:-1]),
        *(quote(KEY), quote(KEY, safe=""), quote_plus(KEY), repr(KEY.encode())[2:-1]),
    ],
)
def test_every_form_is_replaced(form: str) -> None:
    assert Redactor({"KEY": KEY}).redacted(f"a {form} b {form}") == "a [secret KEY] b [secret KEY]"


def test_longer_values_are_replaced_first() -> None:
    assert Redactor({"USER": "abcdef", "URL": "x://abcdef@y"}).redacted("x://abcdef@y abcdef") == (
        "[secret URL] [secret USER]"
    )


def test_short_values_and_other_texts_stay() -> None:
    assert Redactor({"A": "true", "B": "abcdef"}).redacted("true abcde") == "true abcde"


def test_text_that_is_cut_ends_without_a_beginning_of_a_value() -> None:
    redactor = Redactor({"KEY": "abcdefabcdefgh"})
    assert redactor.redacted("x abcdefabc", is_cut=True) == "x [secret KEY]"
    assert redactor.redacted("x abcdefabc") == "x abcdefabc"
    assert redactor.redacted("x abcde", is_cut=True) == "x abcde"
