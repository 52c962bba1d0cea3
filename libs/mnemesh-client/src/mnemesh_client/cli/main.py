"""The `mnemesh` command: its sub-commands, and the one line in which any of them fails."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import MnemeshError

from mnemesh_client.cli import agents, chat, export_import, maintain, memory, prompts, providers, search, tokens, up
from mnemesh_client.cli.connection import Connection
from mnemesh_client.cli.error_text import explain
from mnemesh_client.cli.terminal import complain

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run a mesh of mnemesh services, and talk to its agents.",
)


@app.callback()
def connection(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Option(envvar="MNEMESH_TARGET", help="Address of the orchestrator.", show_default="localhost")
    ] = None,
) -> None:
    """Options of every command."""
    context.obj = Connection.from_env(target)


app.command("up")(up.up)
app.command("down")(up.down)
app.command("doctor")(up.doctor)
app.command("maintain")(maintain.maintain)
app.command("chat")(chat.chat)
app.command("search")(search.search)
app.command("export")(export_import.export)
app.command("import")(export_import.import_)
app.add_typer(agents.app, name="agents")
app.add_typer(memory.app, name="memory")
app.add_typer(prompts.app, name="prompts")
app.add_typer(providers.app, name="providers")
app.add_typer(tokens.app, name="tokens")


def main() -> None:
    """Runs the command line: exit code 1 for a refused request, 2 for what cannot be meant or cannot start."""
    try:
        app(prog_name="mnemesh")
    except StartupError as error:
        complain(str(error))
        sys.exit(2)
    except MnemeshError as error:
        complain(explain(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # whoever read our output has left; Python would complain once more at exit
        sys.stdout = None
        sys.exit(1)
