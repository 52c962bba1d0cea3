"""The page on providers agrees with the table in the code."""

import re
from pathlib import Path

import pytest
from mnemesh_orchestrator.llm.settings import DIALECTS, Api, Dialect

PAGE = (Path(__file__).parents[2] / "docs" / "providers.md").read_text()


def rows(section: str) -> dict[str, list[str]]:
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `")
    return {each[0].strip("`"): each for each in cells if each[0].strip("`") in DIALECTS}


def test_every_vendor_has_a_row() -> None:
    assert list(rows("Settings")) == list(rows("How they differ")) == list(DIALECTS)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.type)
def test_rows_agree_with_the_code(dialect: Dialect) -> None:
    _, title, base, keys, urls = rows("Settings")[dialect.type]
    assert (title, base) == (dialect.title, f"`{dialect.base_url}`" if dialect.base_url else "must be set")
    assert tuple(re.findall(r"`(\w+)`", keys)) == dialect.key_variables
    assert tuple(re.findall(r"`(\w+)`", urls)) == dialect.url_variables
    _, api, ids, limit, choice, parallel, strict, schemas, listing = rows("How they differ")[dialect.type]
    assert (api, listing) == (dialect.api.value, dialect.listing.value)
    assert str(dialect.call_ids.longest) in ids
    assert ("letters and digits" in ids) is dialect.call_ids.is_exact
    if dialect.api is Api.CHAT:
        assert limit == f"`{dialect.limit.value}`"
        assert choice.startswith(f"`{dialect.required_choice}`")
    assert ("by name" in choice) is dialect.named_choice
    shown = [{"yes": True, "no": False}[cell] for cell in (parallel, strict, schemas)]
    assert shown == [dialect.parallel_flag, dialect.strict_tools, dialect.json_schema]
