"""Becomes a service's process, bound to the life of its supervisor. Run as a script: supervisor's pid, then arguments
for the interpreter."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Asks the kernel to end this process with its parent, then runs the interpreter with the given arguments."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != int(sys.argv[1]):
        sys.exit("mnemesh: The supervisor is gone.")
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])  # noqa: S606  (the same interpreter, no shell)


if __name__ == "__main__":
    main()
