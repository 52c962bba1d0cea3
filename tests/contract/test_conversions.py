"""A service that is a process of its own has every type that its conversions need."""

import subprocess
import sys

import pytest
from mnemesh_kit.services import SERVICES

COMPILE = """
import importlib, sys
from mnemesh_types import twin

importlib.import_module(f"{sys.argv[1]}.wiring")
shapes = [*twin._TWINS.values(), *twin._SHAPES.values()]
for shape in shapes:
    twin._reader(shape)
    twin._writer(shape)
print(len(shapes))
"""


@pytest.mark.parametrize("package", [spec.package for spec in SERVICES if spec.has_database])
def test_every_conversion_of_a_service_can_be_compiled(package: str) -> None:
    done = subprocess.run((sys.executable, "-c", COMPILE, package), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
