"""The time limits of calls to other services, in seconds."""

from typing import Final

READ: Final = 5.0
WRITE: Final = 10.0
IMPORT: Final = 120.0
"""For one page of an export or one batch of an import, which may wait for those of others."""
EXECUTE_MARGIN: Final = 30.0
"""The time in addition to the time limit of the tool itself: for the wait for a slot, and for the start of the sandbox.

The tools service stops the tool at its limit."""
SEARCH_FILES: Final = 8.0
"""The files service searches archival, which has READ seconds for that."""
