#!/bin/sh
# Creates a virtual environment with a supported Python. PYTHON selects the interpreter.
# 3.14 is tried last: wordllama has no wheel for it yet and is built from source, which needs a C compiler.
set -eu

supported='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))'
for python in ${PYTHON:-python3.11 python3.12 python3.13 python3 python3.14}; do
    if command -v "$python" >/dev/null 2>&1 && "$python" -c "$supported" 2>/dev/null; then
        exec "$python" -m venv "$1"
    fi
done
echo "mnemesh: Python 3.11 to 3.14 with venv and pip is required (Debian: apt install python3 python3-venv)." \
    "PYTHON=/path/to/python selects an interpreter." >&2
exit 2
