#!/bin/sh
# Makes a virtual environment with a Python that mnemesh runs on. PYTHON=… names one.
set -eu

fits='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))'
for python in ${PYTHON:-} python3.11 python3.12 python3; do
    if command -v "$python" >/dev/null 2>&1 && "$python" -c "$fits" 2>/dev/null; then
        exec "$python" -m venv "$1"
    fi
done
echo "mnemesh: needs Python 3.11 or 3.12 with venv and pip (on Debian: apt install python3 python3-venv);" \
    "PYTHON=/path/to/python names one" >&2
exit 2
