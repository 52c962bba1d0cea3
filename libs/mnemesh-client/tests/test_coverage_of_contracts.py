"""The client has a method for every RPC that clients may call, in both of its forms."""

import ast
from pathlib import Path
from typing import Final

import pytest
from mnemesh_client import sync
from mnemesh_kit.access import rules_of

SOURCE: Final = Path(sync.__file__).parents[1]
WITHOUT_METHOD: Final = {
    "/mnemesh.files.v1.AgentFileService/BatchGetDirectories": "fills the prompts of many agents; `directories` has one",
    "/mnemesh.tools.v1.ExecutionService/RunCodeWithTools": "the caller is a step loop that answers the program's calls",
}
"""RPCs without a method of their own, and why."""


def called(folder: Path) -> set[str]:
    """Returns the names of the RPCs that the code calls on stubs."""
    nodes = [node for path in folder.glob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr[0].isupper()]
    return {node.attr for node in attributes if ast.unparse(node.value).endswith(("stub", "executions"))}


@pytest.mark.parametrize("folder", [SOURCE, SOURCE / "sync"], ids=["async", "sync"])
def test_every_rpc_of_clients_has_a_method(folder: Path) -> None:
    methods = {path for path, rule in rules_of().items() if rule.is_for_clients}
    names = called(folder)
    missing = {path for path in methods if path.rpartition("/")[2] not in names}
    assert missing == WITHOUT_METHOD.keys()
