"""The source of the task that runs uv in the sandbox. It fills the output directory."""

from __future__ import annotations

from typing import Final

SOURCE: Final = '''
import json
import os
import subprocess


def run_uv(uv, arguments, environment, requirements, output):
    """Runs uv on requirements from a file. Returns a JSON list: its status, its output and the end of its messages."""
    os.umask(0o022)  # other uids read what it installs
    with open("requirements.txt", "w", encoding="utf-8") as file:  # in the work directory
        file.write(requirements)
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    done = subprocess.run(
        [uv, *arguments, "requirements.txt"],
        env={**environment, **proxies, "HOME": os.getcwd(), "UV_CACHE_DIR": f"{output}/cache"},
        capture_output=True,
        text=True,
        check=False,
    )
    return json.dumps([done.returncode, done.stdout, done.stderr[-4000:]], ensure_ascii=False)
'''
FUNCTION: Final = "run_uv"
SITE: Final = "site"
"""The directory of the output that receives the packages."""
