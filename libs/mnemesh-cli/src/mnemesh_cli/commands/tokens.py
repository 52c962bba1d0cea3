"""`mnemesh tokens` and `mnemesh certs`: bearer tokens, and certificates of a private authority."""

import time
import uuid
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from mnemesh_cli.display.records import print_done
from mnemesh_kit.auth import mint_token, read_keys
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal, Role
from mnemesh_kit.ids import require_id
from mnemesh_kit.revocations import revocation_file, revoke

app = typer.Typer(no_args_is_help=True, help="Create bearer tokens for a mesh with authentication.")


class TokenRole(StrEnum):
    """The roles of clients."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


@app.command("create")
def create(
    key_file: Annotated[
        str,
        typer.Option(envvar="MNEMESH_AUTH_KEY_FILE", help="Key file of the mesh. Its first line signs the token."),
    ],
    organization: Annotated[
        str, typer.Option(help="Organization of the caller, org-<uuid>.", show_default="the default organization")
    ] = DEFAULT_PRINCIPAL.organization_id,
    subject: Annotated[
        str, typer.Option(help="The caller, user-<uuid>.", show_default="the default user")
    ] = DEFAULT_PRINCIPAL.subject_id,
    role: Annotated[
        TokenRole,
        typer.Option(help="What the token allows: to read, also to change data and send messages, or everything."),
    ] = TokenRole.ADMIN,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            "--agent", "-a", help="Limit the token to calls that are about this agent, agent-<uuid>. Can be repeated."
        ),
    ] = None,
    days: Annotated[float, typer.Option(min=0.001, help="Days until the token expires.")] = 30.0,
) -> None:
    """Create a token and print it.

    Clients send it as MNEMESH_TOKEN, or in the metadata `authorization: Bearer <token>`.
    """
    require_id(organization, "org", "organization")
    require_id(subject, subject.partition("-")[0], "subject")
    for id_ in agent or ():
        require_id(id_, "agent", "agent")
    caller = Principal(organization, subject, agents=frozenset(agent) if agent else None)
    id_ = str(uuid.uuid4())
    token = mint_token(read_keys(key_file)[0], caller, days * 86_400, role=Role(role.value), token_id=id_)
    print_done(token, {"token": token, "id": id_})


@app.command("revoke")
def revoke_tokens(
    key_file: Annotated[
        str,
        typer.Option(envvar="MNEMESH_AUTH_KEY_FILE", help="Key file of the mesh, beside which the list is."),
    ],
    token: Annotated[str | None, typer.Argument(help="The token, or its id (the claim jti).")] = None,
    subject: Annotated[
        str | None, typer.Option(help="Revoke all tokens of a caller: user-<uuid>, or the subject of the issuer.")
    ] = None,
    organization: Annotated[
        str | None,
        typer.Option(help="Revoke all tokens of an organization: org-<uuid>, or the organization of the issuer."),
    ] = None,
    issuer: Annotated[
        str | None,
        typer.Option(envvar="MNEMESH_OIDC_ISSUER", help="The issuer that the subject or the organization is of."),
    ] = None,
) -> None:
    """Revoke a token, or all tokens of a subject or organization that were issued until now.

    The services of the mesh refuse them within seconds. Tokens that are issued later are valid.
    """
    if sum(value is not None for value in (token, subject, organization)) != 1:
        raise typer.BadParameter("Name a token, --subject or --organization.", param_hint="options")
    if token is not None:
        kind, id_ = "token", _token_id(token)
    else:
        kind = "subject" if subject is not None else "organization"
        id_ = _own_id(kind, subject or organization or "", issuer)
    read_keys(key_file)
    path = revocation_file(key_file)
    revoke(path, kind, id_, time.time())
    print_done(f"revoked {kind} {id_} in {path}", {"kind": kind, "id": id_, "file": str(path)})


def _token_id(token: str) -> str:
    """Returns the id of a token. It is not verified: its services did that, or it is of no use."""
    if token.count(".") != 2:
        id_: object = token
    else:
        import jwt  # noqa: PLC0415  (for tokens only)

        try:
            id_ = jwt.decode(token, options={"verify_signature": False}).get("jti")
        except jwt.InvalidTokenError as error:
            raise typer.BadParameter("This is not a token.", param_hint="TOKEN") from error
    if not isinstance(id_, str) or not id_ or len(id_.split()) != 1:
        raise typer.BadParameter("It has no id (jti). Revoke the tokens of its subject.", param_hint="TOKEN")
    return id_


def _own_id(kind: str, name: str, issuer: str | None) -> str:
    """Returns the id of a subject or an organization in the mesh."""
    if issuer is None:
        return require_id(name, "org" if kind == "organization" else name.partition("-")[0], kind)
    from mnemesh_kit.oidc import issuer_id  # noqa: PLC0415  (for tokens of issuers only)

    return issuer_id("org" if kind == "organization" else "user", issuer, name)


certs_app = typer.Typer(no_args_is_help=True, help="Create certificates for TLS between the services of a mesh.")


@certs_app.callback()
def certs() -> None:
    """Keeps `create` a subcommand: typer runs the only command of a group without its name."""


@certs_app.command("create")
def create_certificate_files(
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
    print_done(text, record)
