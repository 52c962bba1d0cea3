"""Runs a service's process so that it ends when its supervisor does.

A script: its arguments are the supervisor's pid and the arguments of the Python interpreter to run.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Makes the kernel kill this process when its parent ends, then replaces it by the interpreter."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != int(sys.argv[1]):
        sys.exit("mnemesh: The supervisor has exited.")
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])  # noqa: S606  (the same interpreter, no shell)


if __name__ == "__main__":
    main()
