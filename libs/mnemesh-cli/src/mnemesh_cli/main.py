"""The `mnemesh` command: its subcommands, and how errors are printed."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import structlog
import typer
from mnemesh_cli.commands import (
    agents,
    approvals,
    archives,
    blocks,
    certs,
    chat,
    conversations,
    doctor,
    export_import,
    files,
    folders,
    groups,
    identities,
    learned,
    logs,
    maintain,
    mcp,
    mcp_servers,
    memory,
    messages,
    models,
    passages,
    profiles,
    prompts,
    providers,
    runs,
    search,
    sleep,
    status,
    tokens,
    tools,
    top,
    tune_search,
    up,
    version,
    watch,
)
from mnemesh_cli.display.error_text import any_error_text, exit_code
from mnemesh_cli.display.terminal import print_error
from mnemesh_cli.global_options import MeshGroup, connection_of
from mnemesh_kit.private_files import make_new_files_private

app = typer.Typer(
    cls=MeshGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run a mesh of mnemesh services and work with its agents.",
)


@app.callback()
def main_options(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version of this program.", callback=version.print_and_exit, is_eager=True
        ),
    ] = False,
) -> None:
    """Gives commands the connection that the options of the line describe."""
    context.obj = connection_of(context)


app.command("up")(up.up)
app.command("down")(up.down)
app.command("doctor")(doctor.doctor)
app.command("status")(status.status)
app.command("logs")(logs.logs)
app.command("top")(top.top)
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
app.add_typer(approvals.app, name="approvals")
app.add_typer(archives.app, name="archives")
app.add_typer(blocks.app, name="blocks")
app.add_typer(certs.app, name="certs")
app.add_typer(conversations.app, name="conversations")
app.add_typer(learned.episodes_app, name="episodes")
app.add_typer(learned.facts_app, name="facts")
app.add_typer(files.app, name="files")
app.add_typer(folders.app, name="folders")
app.add_typer(groups.app, name="groups")
app.add_typer(identities.app, name="identities")
app.add_typer(mcp_servers.app, name="mcp-servers")
app.add_typer(memory.app, name="memory")
app.add_typer(messages.app, name="messages")
app.add_typer(models.app, name="models")
app.add_typer(passages.app, name="passages")
app.add_typer(profiles.app, name="profiles")
app.add_typer(prompts.app, name="prompts")
app.add_typer(providers.app, name="providers")
app.add_typer(runs.app, name="runs")
app.add_typer(tokens.app, name="tokens")
app.add_typer(tools.app, name="tools")
app.command("version")(version.version)


def main() -> None:
    """Runs the command line.

    Exits with 1 after an error, 2 if an argument or a setting is wrong or the mesh cannot start, 3 if something that
    the line names does not exist, and 4 if the mesh cannot be reached.
    """
    make_new_files_private()
    # stdout has the results of commands. The stream is looked up for each line, because callers may replace it.
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
    try:
        app(prog_name="mnemesh")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of stdout is gone. Without this, Python would report a second error when it flushes stdout at exit.
        sys.stdout = None
        sys.exit(1)
    except Exception as error:
        if os.environ.get("MNEMESH_DEBUG"):
            raise
        print_error(any_error_text(error))
        sys.exit(exit_code(error))
