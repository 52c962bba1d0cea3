"""The display of a turn for programs: each event as one line of JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mnemesh.agents.v1 import runs_pb2
from mnemesh_cli.chat.render import PlainRenderer
from mnemesh_cli.display.records import print_json


class JsonRenderer(PlainRenderer):
    """Prints each event to stdout, in a group with the field `agent_name`, and errors of the command to stderr."""

    _agent_name = ""

    @contextmanager
    def speaking(self, name: str, style: str) -> Iterator[None]:
        """Within it, events have the name of the agent that they come from."""
        del style
        self._agent_name = name
        yield
        self._agent_name = ""

    def show(self, event: runs_pb2.RunEvent) -> None:
        """Prints an event."""
        others = {"agent_name": self._agent_name} if self._agent_name else {}
        print_json(event, **others)
