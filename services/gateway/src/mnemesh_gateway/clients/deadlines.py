"""The time limits of calls to other services, in seconds."""

from typing import Final

READ: Final = 5.0
WRITE: Final = 10.0
EMBED: Final = 60.0
ACCEPTANCE: Final = 5.0
"""The time in seconds after which a message that the orchestrator has not accepted is not sent again."""
PATIENCE: Final = 60.0
"""The time in seconds for which a broken stream is retried without an event."""
