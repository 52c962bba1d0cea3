"""The section of the system message about files. Pure functions, exact to the byte."""

from typing import Final

from mnemesh_orchestrator.model.files import Directories, Directory, DirectoryFile, listed_files
from mnemesh_orchestrator.prompt.closing_tags import neutral

OPENING: Final = "\n\n<directories>\n"
CLOSING: Final = "</directories>"
CITATIONS: Final = (
    "\nCite what you take from a file with its name and lines, in this form: [folder/file.pdf:12-15] or "
    "[folder/notes.md:7]."
)
_READY: Final = frozenset({"completed", "embedding"})


def directories_section(directories: Directories, *, is_react: bool) -> str:
    """Returns the section about files; "" for an agent without folders.

    Args:
        directories: the folders of the agent.
        is_react: whether the agent has a type whose closed files have an empty value.
    """
    if not directories.directories:
        return ""
    parts = [
        OPENING,
        "<file_limits>\n",
        f"- current_files_open={directories.open_files}\n",
        f"- max_files_open={directories.limits.max_files_open}\n",
        "</file_limits>\n",
    ]
    limit, listed = directories.limits.per_file_characters, listed_files(directories.limits)
    for directory in directories.directories:
        shown = [file for file in directory.files if file.is_open]
        closed = [file for file in directory.files if not file.is_open][:listed]
        listed -= len(closed)
        shown = sorted((*shown, *closed), key=lambda file: file.name)
        parts += [_directory(directory), *(_file(file, limit, is_react) for file in shown)]
        parts += [_more(directory.file_count - len(shown)), "</directory>\n"]
    return "".join((*parts, CLOSING, CITATIONS))


def directories_of(system_text: str) -> str:
    """Returns the section about files in a system message; "" if it has none."""
    start = system_text.find(f"{OPENING}<file_limits>\n")
    end = system_text.rfind(f"{CLOSING}{CITATIONS}\n\n<memory_metadata>\n")
    return system_text[start : end + len(CLOSING) + len(CITATIONS)] if 0 <= start < end else ""


def _directory(directory: Directory) -> str:
    description = f"<description>{neutral(directory.description)}</description>\n" if directory.description else ""
    instructions = f"<instructions>{neutral(directory.instructions)}</instructions>\n" if directory.instructions else ""
    return f'<directory name="{_attribute(directory.name)}">\n{description}{instructions}'


def _file(file: DirectoryFile, limit: int, is_react: bool) -> str:
    status = "open" if file.is_open else "closed"
    processing = "" if file.status in _READY else f"- processing={file.status}\n"
    metadata = (
        f"<metadata>\n- read_only=true\n{processing}- chars_current={len(file.value)}\n- chars_limit={limit}\n"
        "</metadata>\n"
    )
    name = _attribute(file.name)
    text = neutral(file.value, name)
    if is_react:
        return (
            f'<file status="{status}">\n<{name}>\n<description>\n\n</description>\n{metadata}'
            f"<value>\n{text}\n</value>\n</{name}>\n</file>\n"
        )
    value = f"<value>\n{text}\n</value>\n" if file.is_open else ""
    return f'<file status="{status}" name="{name}">\n{metadata}{value}</file>\n'


def _more(count: int) -> str:
    if count <= 0:
        return ""
    return (
        f"- {count} more files are not listed. Find them with grep_files, whose argument include selects files by "
        "name, or with semantic_search_files.\n"
    )


def _attribute(name: str) -> str:
    return name.replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
