"""Every method of Letta's SDK does what docs/letta-compatibility.md says."""

import importlib
import pkgutil
import re
from pathlib import Path

import letta_client
import pytest
from letta_client import Letta

from . import drivers
from .lab import DRIVERS, Driver, Lab
from .sdk_methods import arguments, sdk_methods

TABLE = Path(__file__).parents[4] / "docs" / "letta-compatibility.md"
ROW = re.compile(r"^\| `([\w.]+)` \| (works|differs|501) \| (.*?) ?\|$", re.MULTILINE)
RESOURCES = [module.name for module in pkgutil.iter_modules(drivers.__path__)]

for resource in RESOURCES:
    importlib.import_module(f"{drivers.__name__}.{resource}")


def claims() -> dict[str, tuple[str, str]]:
    """The table: method → its claim and the reason or the difference."""
    rows = ROW.findall(TABLE.read_text())
    assert len({method for method, _, _ in rows}) == len(rows), "a method stands in two rows"
    return {method: (claim, text) for method, claim, text in rows}


def test_the_table_names_every_method_and_no_other(client: Letta) -> None:
    assert set(claims()) == set(sdk_methods(client))


def test_methods_that_work_have_a_driver_and_the_others_a_reason() -> None:
    table = claims()
    assert set(DRIVERS) == {method for method, (claim, _) in table.items() if claim != "501"}
    assert [method for method, (claim, text) in table.items() if claim != "works" and not text] == []


DRIVEN = {f"{driver.__module__.rpartition('.')[2]}.{driver.__name__}": driver for driver in DRIVERS.values()}


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
@pytest.mark.parametrize("driver", DRIVEN.values(), ids=DRIVEN.keys())
def test_methods_do_what_the_table_says(lab: Lab, driver: Driver) -> None:
    driver(lab)


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_methods_without_an_implementation_answer_501(client: Letta) -> None:
    methods = sdk_methods(client)
    for name in (method for method, (claim, _) in claims().items() if claim == "501"):
        with pytest.raises(letta_client.APIStatusError) as refused:
            list(methods[name](**arguments(name, methods[name])) or ())
        assert refused.value.status_code == 501, name
        assert isinstance(refused.value.body, dict), name
        assert len(str(refused.value.body["detail"])) > 20, name
