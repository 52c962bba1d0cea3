"""Markdown of answers as lines of a terminal, block by block while an answer is streamed."""

from collections.abc import Iterator
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console
from rich.markdown import Heading, Markdown
from rich.segment import Segment
from rich.text import Text
from rich.theme import Theme

_THEME: Final = Theme(
    {
        "markdown.code": "bold",
        "markdown.h1": "bold underline",
        "markdown.h2": "bold underline",
        "markdown.h3": "bold",
        "markdown.item.bullet": "bold",
        "markdown.item.number": "bold",
        "markdown.list": "none",
        "markdown.block_quote": "italic",
        "markdown.link": "underline",
        "markdown.link_url": "underline",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)
"""Only attributes, no colours: they are readable on every background."""


def complete_blocks(text: str) -> tuple[str, str]:
    """Splits the beginning of an answer into its complete blocks, such as paragraphs, and the block that continues."""
    starts = [token.map[0] for token in _parser().parse(text) if token.level == 0 and token.map]
    if not starts:
        return "", text
    lines = text.splitlines(keepends=True)
    return "".join(lines[: starts[-1]]), "".join(lines[starts[-1] :])


def markdown_lines(console: Console, text: str, width: int) -> list[Text]:
    """Returns Markdown as styled lines of at most `width` cells, without spaces at their ends.

    The first and the last line are not blank.
    """
    with console.use_theme(_THEME):
        options = console.options.update(width=width, height=None)
        lines = [_line(segments) for segments in console.render_lines(_Answer(text), options, pad=False)]
    visible = [number for number, line in enumerate(lines) if line]
    return lines[visible[0] : visible[-1] + 1] if visible else []


class _Answer(Markdown):
    """Markdown with the line breaks of the text, with tags of HTML as text, and with addresses of links."""

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.parsed = _parser().parse(text)
        for token in _flat(self.parsed):
            if token.type == "softbreak":
                token.type = "hardbreak"


class _LeftHeading(Heading):
    LEVEL_ALIGN = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


_Answer.elements = {**Markdown.elements, "heading_open": _LeftHeading}


def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


def _flat(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _flat(token.children or [])


def _line(segments: list[Segment]) -> Text:
    line = Text(no_wrap=True)
    for segment in segments:
        if not segment.control:
            line.append(segment.text, segment.style)
    has_background = bool(segments) and segments[-1].style is not None and segments[-1].style.bgcolor is not None
    if not has_background:
        line.rstrip()
    return line
