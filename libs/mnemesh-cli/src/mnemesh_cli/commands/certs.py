"""`mnemesh certs`: certificates of a private authority for TLS between the services of a mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from mnemesh_cli.display.records import print_done

app = typer.Typer(no_args_is_help=True, help="Create certificates for TLS between the services of a mesh.")


@app.callback()
def certs() -> None:
    """Keeps `create` a subcommand: typer runs the only command of a group without its name."""


@app.command("create")
def create(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the authority and the certificates.")],
    days: Annotated[float, typer.Option(min=0.001, help="Days until the certificates expire.")] = 365.0,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A further name or address at which clients reach the services. Can be repeated."),
    ] = None,
    readable: Annotated[
        bool,
        typer.Option("--readable", help="Let the users of containers read the keys; DIR itself stays private."),
    ] = False,
) -> None:
    """Create a private authority in DIR, and a certificate for each service and for clients.

    If DIR has an authority, its certificates are replaced by new ones; running processes use them without a restart.
    """
    from mnemesh_cli.certificates import create_certificates  # noqa: PLC0415  (other commands need no cryptography)

    names = create_certificates(directory.expanduser(), days=days, hosts=host or (), readable=readable)
    settings = f"{directory}/mnemesh.env"
    text = f"certificates for {', '.join(names)} in {directory}\nsettings: set -a; . {settings}; set +a"
    record = {"directory": str(directory), "certificates": list(names), "settings_file": settings}
    print_done(text, record, as_json=context.obj.as_json)
