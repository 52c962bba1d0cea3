"""How long a call to another room may take, in seconds."""

from typing import Final

READ: Final = 5.0
WRITE: Final = 10.0
EXECUTE_MARGIN: Final = 10.0
"""On top of what a tool may take itself: the service kills it and tells of it."""
