"""A service that is a process of its own has every type that its conversions need."""

import json
import subprocess
import sys

import pytest
from mnemesh_kit.services import SERVICES

COMPILE = """
import importlib, json, os, sys
import mnemesh_kit.server, mnemesh_kit.sql
from mnemesh_types import twin

for package in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(f"{package}.wiring")
        shapes = [*twin._TWINS.values(), *twin._SHAPES.values()]
        for shape in shapes:
            twin._reader(shape)
            twin._writer(shape)
        print(json.dumps([package, len(shapes)]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.full
def test_every_conversion_of_a_service_can_be_compiled() -> None:
    """Each service is a fork of a process that has imported none."""
    packages = [spec.package for spec in SERVICES if spec.has_database]
    done = subprocess.run((sys.executable, "-c", COMPILE, *packages), capture_output=True, text=True, check=False)
    compiled = dict(json.loads(line) for line in done.stdout.splitlines())
    assert list(compiled) == packages, done.stderr
    assert min(compiled.values()) > 10
