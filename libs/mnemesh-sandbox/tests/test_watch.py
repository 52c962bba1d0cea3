"""Which processes of a tool a measurement must see."""

import subprocess
import sys
import time
from pathlib import Path

from mnemesh_sandbox.inside import watch
from mnemesh_testkit.timeouts import scaled

# Its first thread ends, so the memory of the process is not shown where it usually is.
_HEADLESS = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def _wait_for_zombie(pid: int) -> None:
    deadline = time.monotonic() + scaled(60)
    while "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_process_that_runs_without_its_first_thread_is_not_ending() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", _HEADLESS], stdin=subprocess.PIPE) as headless:
        _wait_for_zombie(headless.pid)
        assert not watch._is_ending(headless.pid)
        headless.kill()


def test_process_that_has_ended_or_is_gone_is_ending() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as ended:
        _wait_for_zombie(ended.pid)
        assert watch._is_ending(ended.pid)
    assert watch._is_ending(ended.pid)
