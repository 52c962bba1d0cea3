"""The list of services agrees with the contracts."""

import pkgutil
from importlib import import_module

import pytest
from google.protobuf import descriptor_pool
from mnemesh_kit.services import SERVICE_NAMES, SERVICES, service


def test_names_and_ports_are_unique() -> None:
    assert len(set(SERVICE_NAMES)) == len({spec.port for spec in SERVICES}) == len(SERVICES)
    assert service("blocks").default_target == "127.0.0.1:50051"
    assert service("blocks").port_variable == "MNEMESH_BLOCKS_PORT"
    assert service("recall").target_variable == "MNEMESH_RECALL_TARGET"
    assert service("tools").distribution == "mnemesh-tools"
    with pytest.raises(KeyError):
        service("billing")


@pytest.mark.parametrize("name", [name for spec in SERVICES for name in spec.proto_services])
def test_listed_proto_service_exists(name: str) -> None:
    package = import_module(name.rpartition(".")[0])
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        import_module(module.name)
    assert descriptor_pool.Default().FindServiceByName(name).full_name == name
