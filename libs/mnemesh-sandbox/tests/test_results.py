"""The results of tools: values, errors, output and changes of the agent."""

from pathlib import Path

import pytest
from mnemesh_sandbox import AgentView, BlockProperties, OutcomeStatus, Sandbox, Task
from mnemesh_testkit.timeouts import scaled

from .support import Run, source_of, value_of

# What a tool returns does not depend on the layers around it.
pytestmark = pytest.mark.parametrize(
    "sandbox", ["all layers", pytest.param("no namespaces", marks=pytest.mark.full)], indirect=True
)


async def test_value_output_and_time(run: Run) -> None:
    """The result is separate from stdout."""
    outcome = await run(source_of("print('seen'); import sys; print('bad', file=sys.stderr); return x * 2", "x"), x=21)
    assert (outcome.status, outcome.text, outcome.stdout, outcome.stderr) == (
        OutcomeStatus.SUCCESS,
        "42",
        "seen\n",
        "bad\n",
    )
    assert outcome.duration > 0


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("'as \"it\" is\\nß'", 'as "it" is\nß'),
        ("None", "None"),
        ("True", "True"),
        ("2.50", "2.5"),
        ("[1, {'a': None}, 'x\\ny']", "[1, {'a': None}, 'x\\ny']"),
        ("(1, 'ß')", "(1, 'ß')"),
        ("{3}", "{3}"),
        ("[]", "[]"),
        ("{}", "{}"),
        ("{'k': {3}, 'l': (None, True, 'ß')}", '{"k": [3], "l": [null, true, "ß"]}'),
        ("{(1, 2): 3}", "{(1, 2): 3}"),
        ("__import__('datetime').date(2026, 1, 2)", "2026-01-02"),
        ("'a\\0b'", "a\N{REPLACEMENT CHARACTER}b"),
        ("'a\\ud800b'", "a?b"),
    ],
)
async def test_returned_values_as_text(run: Run, expression: str, text: str) -> None:
    assert (await run(source_of(f"return {expression}"))).text == text


async def test_arguments_are_passed_as_data(run: Run) -> None:
    text = "'''\"; import os\n\\x00 {braces} $HOME \N{SNOWMAN}"
    assert value_of(await run(source_of("return [a, b]", "a, b"), a=text, b=[text, {"k": None}])) == [
        text,
        [text, {"k": None}],
    ]


async def test_async_tools_typing_names_and_optional_parameters_work(run: Run) -> None:
    source = """async def tool(a: List[int], b: Optional[str], c=3):
    import asyncio
    await asyncio.sleep(0)
    return [a, b, c]
"""
    assert value_of(await run(source, a=[1])) == [[1], None, 3]


async def test_exception_is_one_line_with_the_traceback_in_stderr(run: Run) -> None:
    outcome = await run(source_of("raise ValueError('no such city')"))
    assert (outcome.status, outcome.text) == (
        OutcomeStatus.ERROR,
        "Error executing function tool: ValueError: no such city",
    )
    assert "raise ValueError('no such city')" in outcome.stderr
    assert "runner.py" not in outcome.stderr
    assert len((await run(source_of("raise ValueError('x' * 10**6)"))).text) <= 1000
    assert (await run("def tool(:")).text.startswith("Error executing function tool: SyntaxError: ")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import os; os._exit(0)", "its process ended before the function returned"),
        (
            "import os\nfor fd in range(3, 256):\n    try: os.write(fd, b'{\"ok\": true')\n    except OSError: pass",
            "cannot be read",
        ),
        (
            "import os\nfor fd in range(3, 256):\n    try: os.write(fd, b'[]')\n    except OSError: pass\nos._exit(0)",
            "cannot be read",
        ),
        ("import os\nos.closerange(0, 100)", "ended before the function returned"),
        ("class Evil:\n    def __str__(self): raise RuntimeError('no text')\nreturn Evil()", "RuntimeError: no text"),
    ],
)
async def test_forged_broken_or_missing_result_is_an_error(run: Run, body: str, words: str) -> None:
    outcome = await run(source_of(body))
    assert outcome.status is OutcomeStatus.ERROR
    assert words in outcome.text


async def test_long_results_and_output_are_cut(run: Run) -> None:
    outcome = await run(source_of("print('x' * 3_000_000)\nreturn 'y' * 3_000_000"))
    assert (len(outcome.text), outcome.chars) == (1_000_000, 3_000_000)
    assert outcome.stdout.endswith("[The output was cut: it has 3000001 bytes, and 100000 are kept.]")
    assert len(outcome.stdout) < 100_100


async def test_agent_state_can_be_read_and_changed(sandbox: Sandbox) -> None:
    """Only changed blocks are returned."""
    body = """
    memory = agent_state.memory
    memory.update_block_value(label='human', value=memory.get_block('human').value + ' rides')
    shown = [[block.description, block.limit] for block in memory.blocks]
    return [agent_state.id, agent_state.name, memory.list_block_labels(), shown]
    """
    properties = {"human": BlockProperties("The user.", 500)}
    agent = AgentView("agent-1", "Ada", {"human": "Bo", "persona": "calm"}, properties)
    outcome = await sandbox.run(Task(source_of(body, "agent_state"), "tool", agent=agent), scaled(60))
    assert value_of(outcome) == ["agent-1", "Ada", ["human", "persona"], [["The user.", 500], [None, None]]]
    assert outcome.changed_blocks == {"human": "Bo rides"}


@pytest.mark.parametrize("size", [0, 10, 3_000_000])
async def test_content_reaches_the_function(sandbox: Sandbox, tmp_path: Path, size: int) -> None:
    """The file itself stays out of reach: the task receives its bytes."""
    path = tmp_path / "content"
    path.write_bytes(b"\n\xff" * (size // 2))
    path.chmod(0o600)
    source = source_of("return [a, len(content), content[:4].hex(), content.count(b'\\n')]", "content, a")

    outcome = await sandbox.run(Task(source, "tool", {"a": "x\n"}, content=path), scaled(60))

    assert value_of(outcome) == ["x\n", size, "0aff0aff"[:size], size // 2]


async def test_content_that_cannot_be_read_is_an_error(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await sandbox.run(Task(source_of("return 1", "content"), "tool", content=tmp_path / "missing"), scaled(60))


async def test_client_that_a_tool_does_not_have(run: Run) -> None:
    """Sources that were written for another server may expect one in their module, or as a parameter."""
    unused = await run(source_of("return [bool(client), bool(tool.__globals__['client'])]", "client"))
    assert unused.text == "[False, False]"
    used = await run(source_of("client.agents.passages.create(text='x')"))
    assert "agent_state.memory" in used.text
