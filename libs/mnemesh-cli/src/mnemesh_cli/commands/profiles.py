"""`mnemesh profiles`: list, show, set, use, delete."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from mnemesh_cli.commands.resources import text_column
from mnemesh_cli.display.records import Column, print_done, print_list, print_record
from mnemesh_cli.profiles import Profile, Profiles, config_file, read_profiles, require_name

app = typer.Typer(no_args_is_help=True, help="Name meshes and their credentials for --profile.")


def _complete(incomplete: str) -> list[str]:
    return [name for name in read_profiles().named if name.startswith(incomplete)]


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the profile.", autocompletion=_complete)]
_COLUMNS = (
    Column("", lambda row: "›" if row["is_current"] else ""),
    text_column("PROFILE", lambda row: row["name"]),
    text_column("ADDRESS", lambda row: row.get("target", "")),
    text_column("TOKEN", lambda row: row.get("token_file", "")),
    text_column("TLS", lambda row: row.get("tls_ca_file", "")),
)


@app.command("list")
def list_profiles() -> None:
    """List the profiles. Commands without --profile use the marked one."""
    profiles = read_profiles()
    rows = [
        {"name": name, "is_current": name == profiles.current, **profile.values}
        for name, profile in sorted(profiles.named.items())
    ]
    empty = f"There are no profiles in {config_file()}. Create one with `mnemesh profiles set`."
    asyncio.run(print_list(rows, _COLUMNS, empty=empty))


@app.command("show")
def show(name: NameArgument) -> None:
    """Show a profile."""
    print_record({"name": name, **read_profiles().get(name).values})


@app.command("set")
def set_profile(
    name: NameArgument,
    address: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The orchestrator.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with a bearer token.")] = None,
    auth_key_file: Annotated[Path | None, typer.Option(help="Key file of the mesh, to sign tokens with.")] = None,
    tls_ca_file: Annotated[Path | None, typer.Option(help="Authority of the servers' certificates.")] = None,
    tls_cert_file: Annotated[Path | None, typer.Option(help="Certificate of this client.")] = None,
    tls_key_file: Annotated[Path | None, typer.Option(help="Key of that certificate.")] = None,
    tls_server_name: Annotated[str | None, typer.Option(help="Name in the servers' certificates.")] = None,
) -> None:
    """Create a profile, or change what is given of one. The files are not copied."""
    files = {
        "token_file": token_file,
        "auth_key_file": auth_key_file,
        "tls_ca_file": tls_ca_file,
        "tls_cert_file": tls_cert_file,
        "tls_key_file": tls_key_file,
    }
    values = {field: str(path.expanduser().absolute()) for field, path in files.items() if path is not None}
    values |= {"target": address} if address else {}
    values |= {"tls_server_name": tls_server_name} if tls_server_name else {}
    if not values:
        raise typer.BadParameter("Name at least one setting, such as --address.", param_hint="options")
    profiles = read_profiles()
    profile = replace(profiles.named.get(require_name(name), Profile()), **values)
    Profiles(profiles.current, {**profiles.named, name: profile}).write()
    print_done(f"{name} is in {config_file()}", {"name": name, **profile.values})


@app.command("use")
def use(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the profile.", show_default="none", autocompletion=_complete),
    ] = None,
) -> None:
    """Choose the profile of commands without --profile, or none."""
    profiles = read_profiles()
    if name is not None:
        profiles.get(name)
    replace(profiles, current=name).write()
    text = f"commands use {name}" if name else "commands use no profile"
    print_done(text, {"profile": name})


@app.command("delete")
def delete(name: NameArgument) -> None:
    """Delete a profile. Its files stay."""
    profiles = read_profiles()
    profiles.get(name)
    named = {each: profile for each, profile in profiles.named.items() if each != name}
    Profiles(None if profiles.current == name else profiles.current, named).write()
    print_done(f"deleted {name}", {"deleted": name})
