"""`mnemesh --version`, `version` and `whoami`: the versions of this program and of a mesh, and who calls it."""

import asyncio
from typing import Final

import typer
from mnemesh_cli.commands.resources import with_client
from mnemesh_cli.display.error_text import error_text
from mnemesh_cli.display.records import print_done, print_record
from mnemesh_cli.display.terminal import print_error
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import MnemeshError, Unavailable, Unimplemented
from mnemesh_kit.health import http_version
from mnemesh_kit.outgoing import DEADLINE_SECONDS
from mnemesh_kit.server_info import version_of
from mnemesh_kit.services import Protocol, service

CLIENT_VERSION: Final = version_of("mnemesh-client")
_UNKNOWN: Final = "unknown"


def print_and_exit(is_set: bool) -> None:
    """The callback of `--version`: prints the version of this program and exits."""
    if is_set:
        typer.echo(f"mnemesh {CLIENT_VERSION}")
        raise typer.Exit


@with_client
async def version(mnemesh: Mnemesh) -> int:
    """Print the version of this program and of each service of the mesh.

    The exit code is 1 if a service does not answer.
    """
    _print("client", CLIENT_VERSION)
    names = [name for name, _ in mnemesh.addresses.items()]
    results = await asyncio.gather(*(_version_or_error(mnemesh, name) for name in names))
    errors = [result for result in results if isinstance(result, MnemeshError)]
    if len(errors) == len(results):
        raise errors[0]
    for name, result in zip(names, results, strict=True):
        if isinstance(result, MnemeshError):
            print_error(f"{name}: {error_text(result)}")
        else:
            _print(name, result)
    return int(bool(errors))


@with_client
async def whoami(mnemesh: Mnemesh) -> None:
    """Print the caller that the token names: organization, subject, role, agents, expiry and issuer."""
    print_record(await mnemesh.whoami())


async def service_version(mnemesh: Mnemesh, name: str) -> str:
    """Returns the version of a running service; "unknown" for a release that does not report its version.

    Raises:
        MnemeshError: the service does not answer, or it returned another error.
    """
    if service(name).protocol is Protocol.HTTP:
        address = dict(mnemesh.addresses.items())[name]
        try:
            return await http_version(address, DEADLINE_SECONDS) or _UNKNOWN
        except OSError as error:
            raise Unavailable(f"{address} does not answer.") from error
    try:
        return (await mnemesh.server_info(name)).version or _UNKNOWN
    except Unimplemented:
        return _UNKNOWN


def _print(name: str, found: str) -> None:
    print_done(f"{name:13} {found}", {"name": name, "version": found})


async def _version_or_error(mnemesh: Mnemesh, name: str) -> str | MnemeshError:
    try:
        return await service_version(mnemesh, name)
    except MnemeshError as error:
        return error
