"""The sources of an answer: the files and lines that it cites."""

from __future__ import annotations

import re
from typing import Final

from mnemesh.agents.v1 import runs_pb2
from mnemesh.files.v1 import agent_files_service_pb2
from mnemesh_cli.chat.render import LiveRenderer, PlainRenderer
from mnemesh_cli.display.file_views import citation_text
from mnemesh_client.agent_files import AgentFiles
from mnemesh_client.inputs import text_of
from mnemesh_kit.errors import MnemeshError

_CITATION: Final = re.compile(r":\d+(-\d+)?\]")
"""The form of a citation. Only answers that contain this form are sent to the server."""
_MOST: Final = 10


async def show_sources(renderer: LiveRenderer | PlainRenderer, files: AgentFiles, event: runs_pb2.RunEvent) -> None:
    """Shows what an answer of an agent cites, each source once. Nothing if the files service does not answer."""
    answer = text_of(event.message.assistant.content)
    if not _CITATION.search(answer):
        return
    try:
        citations = await files.citations(answer)
    except MnemeshError:
        return
    lines = list(dict.fromkeys(map(_line, citations)))
    if lines:
        renderer.show_note("sources:")
    for line in lines[:_MOST]:
        renderer.show_note(f"  {line}")
    if len(lines) > _MOST:
        renderer.show_note(f"  and {len(lines) - _MOST} others")


def _line(citation: agent_files_service_pb2.Citation) -> str:
    return citation_text(citation) + ("" if citation.HasField("file_id") else " (not found)")
