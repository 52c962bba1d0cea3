"""The streams of model servers as they are on the wire, and what each server refuses.

The shapes are facts from the public documentation and issue trackers of the servers. A new server is an entry of
`chat.py` or `blocks.py`.
"""

from mnemesh_testkit.wires.chat import BLOCK_WIRES, CHAT_WIRES, Event, Wire, encoded

WIRES = (*CHAT_WIRES, *BLOCK_WIRES)
"""The streams of all servers."""

__all__ = ["WIRES", "Event", "Wire", "encoded"]
