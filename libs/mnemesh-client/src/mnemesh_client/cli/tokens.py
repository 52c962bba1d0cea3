"""`mnemesh tokens`: bearer tokens for a mesh with authentication."""

from __future__ import annotations

from typing import Annotated

import typer
from mnemesh_kit.auth import mint_token, read_keys
from mnemesh_kit.ids import require_id
from mnemesh_kit.principal import DEFAULT_PRINCIPAL, Principal

from mnemesh_client.cli.terminal import output

app = typer.Typer(no_args_is_help=True, help="Sign tokens with the key file of the mesh.")


@app.callback()
def tokens() -> None:
    """Keeps `create` a sub-command."""


@app.command("create")
def create(
    key_file: Annotated[
        str, typer.Option(envvar="MNEMESH_AUTH_KEY_FILE", help="Keys, one a line; the first one signs.")
    ],
    organization: Annotated[str, typer.Option(help="org-<uuid>; the default one otherwise.")] = (
        DEFAULT_PRINCIPAL.organization_id
    ),
    subject: Annotated[str, typer.Option(help="user-<uuid>; the default one otherwise.")] = (
        DEFAULT_PRINCIPAL.subject_id
    ),
    days: Annotated[float, typer.Option(min=0.001, help="How long it is valid.")] = 30.0,
) -> None:
    """Print a token, to be presented as MNEMESH_TOKEN or in the metadata authorization: Bearer."""
    require_id(organization, "org", "organization")
    require_id(subject, subject.partition("-")[0], "subject")
    key = read_keys(key_file)[0]
    output().print(mint_token(key, Principal(organization, subject), days * 86_400), markup=False, soft_wrap=True)
