"""The section about files: exact texts, and its place in the system message."""

from dataclasses import replace

import pytest
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_orchestrator.model.files import (
    Directories,
    Directory,
    DirectoryFile,
    FileLimits,
    default_limits,
    wanted_limits,
)
from mnemesh_orchestrator.prompt.assembly import (
    CITATIONS,
    compose,
    directories_of,
    directories_section,
    memory_section,
    shows,
)

OPEN = DirectoryFile("reports/a.txt", is_open=True, value="[Viewing file start (out of 1 lines)]\n1: test")
CLOSED = DirectoryFile("reports/b.txt", is_open=False)
FOUND = Directories(
    7, (Directory("reports", "Yearly reports.", "Quote them.", (OPEN, CLOSED), 2),), FileLimits(5, 15_000), 1
)
HEAD = """

<directories>
<file_limits>
- current_files_open=1
- max_files_open=5
</file_limits>
<directory name="reports">
<description>Yearly reports.</description>
<instructions>Quote them.</instructions>
"""
COMMON = f"""{HEAD}<file status="open" name="reports/a.txt">
<metadata>
- read_only=true
- chars_current=45
- chars_limit=15000
</metadata>
<value>
[Viewing file start (out of 1 lines)]
1: test
</value>
</file>
<file status="closed" name="reports/b.txt">
<metadata>
- read_only=true
- chars_current=0
- chars_limit=15000
</metadata>
</file>
</directory>
</directories>{CITATIONS}"""
REACT = f"""{HEAD}<file status="open">
<reports/a.txt>
<description>

</description>
<metadata>
- read_only=true
- chars_current=45
- chars_limit=15000
</metadata>
<value>
[Viewing file start (out of 1 lines)]
1: test
</value>
</reports/a.txt>
</file>
<file status="closed">
<reports/b.txt>
<description>

</description>
<metadata>
- read_only=true
- chars_current=0
- chars_limit=15000
</metadata>
<value>

</value>
</reports/b.txt>
</file>
</directory>
</directories>{CITATIONS}"""


@pytest.mark.parametrize(("is_react", "expected"), [(False, COMMON), (True, REACT)])
def test_sections_are_exact(is_react: bool, expected: str) -> None:
    assert directories_section(FOUND, is_react=is_react) == expected


def test_an_agent_without_folders_has_no_section() -> None:
    assert directories_section(Directories(), is_react=False) == ""


def test_the_section_follows_the_rules_and_is_found_again() -> None:
    section = directories_section(FOUND, is_react=False)
    memory = memory_section(CoreMemory("agent-1", 1), "One rule.", section, numbered=False, show_blocks=True)
    metadata = (
        "<memory_metadata>\n- System prompt last recompiled: May 1, 2026\n"
        "- 0 previous messages between you and the user are stored in recall memory (use tools to access them)\n"
        "</memory_metadata>"
    )
    system = compose("You.\n{CORE_MEMORY}\nEnd.", memory, metadata)
    assert "One rule.\n</tool_usage_rules>\n\n<directories>\n<file_limits>" in system
    assert directories_of(system) == section
    assert shows(system, "You.\n{CORE_MEMORY}\nEnd.", memory, "")
    assert not shows(system, "You.\n{CORE_MEMORY}\nEnd.", memory.replace("1: test", "1: other"), "")
    assert directories_of("You.\n\n<memory_metadata>\n") == ""


def test_many_files_are_counted_instead_of_listed() -> None:
    files = tuple(DirectoryFile(f"big/{number:04}.txt", is_open=number == 150) for number in range(200))
    big = Directories(1, (Directory("big", files=files, file_count=9_800),), FileLimits(3, 5_000), 1)
    section = directories_section(big, is_react=False)
    assert section.count("<file status=") == 21
    assert 'status="open" name="big/0150.txt"' in section
    assert "- 9779 more files are not listed. Find them with grep_files" in section


def test_names_cannot_leave_their_attribute_and_states_are_named() -> None:
    file = replace(CLOSED, name='reports/"><x>.txt', status="parsing")
    section = directories_section(replace(FOUND, directories=(Directory("reports", files=(file,)),)), is_react=False)
    assert '<file status="closed" name="reports/&quot;&gt;&lt;x&gt;.txt">' in section
    assert "- read_only=true\n- processing=parsing\n" in section


@pytest.mark.parametrize(
    ("tokens", "limits"),
    [
        (8_000, (3, 5_000)),
        (8_001, (5, 15_000)),
        (32_000, (5, 15_000)),
        (128_000, (10, 25_000)),
        (200_000, (10, 40_000)),
        (1_000_000, (15, 40_000)),
    ],
)
def test_limits_follow_the_context_window(tokens: int, limits: tuple[int, int]) -> None:
    assert default_limits(tokens) == FileLimits(*limits)


def test_limits_of_the_owner_stay() -> None:
    assert wanted_limits(FileLimits(2, 700), 200_000, None, None) == FileLimits(2, 700)
    assert wanted_limits(FileLimits(2, 700), 200_000, 4, None) == FileLimits(4, 40_000)
    assert wanted_limits(FileLimits(3, 5_000), 200_000, None, None) == FileLimits(10, 40_000)
