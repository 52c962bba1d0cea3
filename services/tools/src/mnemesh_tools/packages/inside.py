"""The source of the task that runs uv in the sandbox. It fills the output directory."""

from __future__ import annotations

from typing import Final

SOURCE: Final = '''
import json
import os
import signal
import subprocess
import time

ORPHAN_SECONDS = 5.0


def orphans():
    """Returns the processes whose parents have ended: those that the code of a build left behind."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == os.getppid():
            found.append(int(name))
    return found


def wait_for(process):
    """Returns the status of uv. It waits for builds, and these for processes that they left, which are ended."""
    known = {}
    while True:
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        known = {pid: known.get(pid, now) for pid in orphans()}
        for pid, since in known.items():
            if now - since > ORPHAN_SECONDS:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


def run_uv(uv, arguments, environment, requirements, output):
    """Runs uv on requirements from a file. Returns a JSON list: its status, its output and the end of its messages."""
    os.umask(0o022)  # other uids read what it installs
    with open("requirements.txt", "w", encoding="utf-8") as file:  # in the work directory
        file.write(requirements)
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    # Files, because a process that a build left behind would keep pipes open.
    form = {"mode": "w+", "encoding": "utf-8", "errors": "replace"}
    with open("output", **form) as said, open("messages", **form) as told:
        status = wait_for(
            subprocess.Popen(
                [uv, *arguments, "requirements.txt"],
                env={**environment, **proxies, "HOME": os.getcwd(), "UV_CACHE_DIR": f"{output}/cache"},
                stdout=said,
                stderr=told,
            )
        )
        said.seek(0)
        told.seek(0)
        return json.dumps([status, said.read(), told.read()[-4000:]], ensure_ascii=False)
'''
FUNCTION: Final = "run_uv"
SITE: Final = "site"
"""The directory of the output that receives the packages."""
