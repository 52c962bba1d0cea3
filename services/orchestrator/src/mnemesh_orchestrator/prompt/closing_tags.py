r"""Texts inside the sections of the system message, which must not close them.

A closing tag of our own sections in a value is shown with a backslash, as in `<\/memory_blocks>`. Any other markup, and
every `<` and `&`, is shown as it is. One backslash is added to those that a text has itself, so that `restored` returns
exactly the stored text, and an edit by the text that the model saw finds it.
"""

import re
from functools import lru_cache
from typing import Final

_TAGS: Final = (
    *("memory_blocks", "description", "metadata", "warning", "value"),
    *("tool_usage_rules", "tool_rule", "memory_metadata", "available_skills"),
    *("directories", "directory", "file_limits", "file", "instructions"),
)


def neutral(text: str, *names: str) -> str:
    """Returns a text as it is shown inside a section.

    Args:
        text: a text of any author.
        names: further tags that it must not close, such as the label of its block.
    """
    return _closing(names).sub(r"<\\", text) if "<" in text else text


def restored(text: str, *names: str) -> str:
    """Returns the text that `neutral` showed as this one."""
    return _neutralized(names).sub("<", text) if "<\\" in text else text


@lru_cache(maxsize=1024)
def _closing(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(r"<" + _rest(names), re.IGNORECASE)


@lru_cache(maxsize=1024)
def _neutralized(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(r"<\\" + _rest(names), re.IGNORECASE)


def _rest(names: tuple[str, ...]) -> str:
    return rf"(?=\\*\s*/\s*(?:{'|'.join(map(re.escape, (*_TAGS, *names)))})(?![\w-]))"
