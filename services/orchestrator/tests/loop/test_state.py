"""Only the engine, its two parts and the methods of the state write the state of a turn."""

import ast
from pathlib import Path

import mnemesh_orchestrator.loop.state as state_module
import pytest
from mnemesh_orchestrator.loop.state import StepState, TurnState

LOOP = Path(state_module.__file__).parent
ENGINE = ("engine.py", "compaction.py")
WRITERS = {"state.py", *ENGINE}
OWN_METHODS = {"use_fallback", "mark_first_token", "conclude", "start_attempt", "accept"}
READERS = [path for folder in (LOOP, LOOP.parent / "runs", LOOP.parent / "usecases") for path in folder.glob("*.py")]


def writes(source: str) -> list[str]:
    """Returns the assignments to attributes of a turn's or a step's state, and the calls of methods that write."""
    found = []
    for node in ast.walk(ast.parse(source)):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OWN_METHODS:
            targets = [node.func]
        for target in targets:
            if isinstance(target, ast.Attribute) and ast.unparse(target.value).split(".")[-1] in ("state", "step"):
                found.append(ast.unparse(target))
    return found


@pytest.mark.parametrize("path", [path for path in READERS if path.name not in WRITERS], ids=lambda path: path.stem)
def test_only_the_engine_writes_the_state_of_a_turn(path: Path) -> None:
    assert not [
        write
        for write in writes(path.read_text())
        # They create a state, and complete it before the engine has it.
        if (path.stem, write) not in {("turn_builder", "turn.state.step_number"), ("step_commit", "step.accept")}
    ]


def test_engine_writes_the_state_of_a_turn() -> None:
    written = {write.split(".")[-1] for name in ENGINE for write in writes((LOOP / name).read_text())}
    assert written | {"start_attempt", "mark_first_token"} >= OWN_METHODS
    assert {"window", "core", "solver", "pending", "tokens", "approval", "open_commit"} <= written
    assert all(hasattr(TurnState, name) or hasattr(StepState, name) for name in OWN_METHODS)
