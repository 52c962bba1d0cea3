"""The `mnemesh` command, which `python -m mnemesh_cli` is, too."""

import sys
from typing import Final

_PLAIN_STARTS: Final = (["up"], ["--json", "up"], ["up", "--json"])
"""The arguments of the usual start. Its process lives as long as the mesh, so it does without the parser of options,
which takes 14 MB and delays the services by a tenth of a second."""


def main() -> None:
    """Starts a mesh, or runs another command line."""
    if sys.argv[1:] in _PLAIN_STARTS:
        from mnemesh_cli.commands.foreground import main as run  # noqa: PLC0415
    else:
        from mnemesh_cli.main import main as run  # noqa: PLC0415
    run()


if __name__ == "__main__":
    main()
