"""The `mnemesh` command: its subcommands, and how errors are printed."""

from __future__ import annotations

import sys
from typing import Annotated

import structlog
import typer
from mnemesh_cli.commands import (
    agents,
    certs,
    chat,
    doctor,
    export_import,
    files,
    folders,
    groups,
    maintain,
    mcp,
    mcp_servers,
    memory,
    prompts,
    providers,
    search,
    sleep,
    tokens,
    tools,
    tune_search,
    up,
    version,
    watch,
)
from mnemesh_cli.connection import Connection
from mnemesh_cli.display.error_text import error_text
from mnemesh_cli.display.terminal import print_error
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.private_files import make_new_files_private

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run a mesh of mnemesh services and work with its agents.",
)


@app.callback()
def main_options(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Option(envvar="MNEMESH_TARGET", help="Address of the orchestrator.", show_default="localhost:50050"),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version of this program.", callback=version.print_and_exit, is_eager=True
        ),
    ] = False,
) -> None:
    """Reads the options that come before a command."""
    context.obj = Connection.from_env(target)


app.command("up")(up.up)
app.command("down")(up.down)
app.command("doctor")(doctor.doctor)
app.command("maintain")(maintain.maintain)
app.command("chat")(chat.chat)
app.command("search")(search.search)
app.command("sleep")(sleep.sleep)
app.command("tune-search")(tune_search.tune_search)
app.command("watch")(watch.watch)
app.command("mcp")(mcp.mcp)
app.command("export")(export_import.export)
app.command("import")(export_import.import_)
app.add_typer(agents.app, name="agents")
app.add_typer(certs.app, name="certs")
app.add_typer(files.app, name="files")
app.add_typer(folders.app, name="folders")
app.add_typer(groups.app, name="groups")
app.add_typer(mcp_servers.app, name="mcp-servers")
app.add_typer(memory.app, name="memory")
app.add_typer(prompts.app, name="prompts")
app.add_typer(providers.app, name="providers")
app.add_typer(tokens.app, name="tokens")
app.add_typer(tools.app, name="tools")
app.command("version")(version.version)


def main() -> None:
    """Runs the command line.

    Exits with 1 if the server refuses a request, and with 2 if an argument is invalid or the mesh cannot start.
    """
    make_new_files_private()
    # stdout has the results of commands. The stream is looked up for each line, because callers may replace it.
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
    try:
        app(prog_name="mnemesh")
    except StartupError as error:
        print_error(str(error))
        sys.exit(2)
    except MnemeshError as error:
        print_error(error_text(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of stdout is gone. Without this, Python would report a second error when it flushes stdout at exit.
        sys.stdout = None
        sys.exit(1)
