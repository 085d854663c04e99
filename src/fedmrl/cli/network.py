"""The commands for federations over a network, thin over `fedmrl.flower`."""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedmrl.cli.options import AsJson, Imports, RecipeName, SettingsOption
from fedmrl.cli.plain import Commands
from fedmrl.cli.terminal import end, notice, print_json, print_text, say, show, table
from fedmrl.errors import UserError

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="the folder")]
Server = Annotated[Path, typer.Option("--server", metavar="DIR", help="the server's folder")]

server = Commands(help="The server of a federation over a network.")
client = Commands(help="An organisation's side of a federation.")
federation = Commands(help="Runs of a federation over a network.")
demo = Commands(help="Demonstrations on this machine.")


# ---- the server ----


@server.command("init")
def server_init(
    folder: Folder,
    hosts: Annotated[list[str], typer.Option("--host", help="a name or address by which clients reach it; again for more")],
    listen: Annotated[str, typer.Option(help="the address to listen on")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="the port to listen on", min=1, max=65535)] = 8443,
) -> None:
    """Make a server's folder, with certificates."""
    from fedmrl.flower.server_folder import ServerFolder

    made = ServerFolder.create(folder, hosts, listen, port)
    say(f"{folder} is ready; its README.md says what is in it. Give {made.authority} to every client.")
    say(f"Start it by: fedmrl server start {folder}")


@server.command("start")
def server_start(folder: Folder) -> None:
    """Run the server until it is stopped."""
    from fedmrl.flower.server_folder import ServerFolder

    opened = ServerFolder.opened(folder)
    opened.lock()
    _foreground(*opened.start())


@server.command("register")
def server_register(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="the client's name, as in its client.toml")],
    key: Annotated[Path, typer.Argument(metavar="KEY.pub", help="the public key that the client sent")],
) -> None:
    """Register a client by its public key.

    The server has to be running.
    """
    from fedmrl.flower.server_folder import ServerFolder

    new = ServerFolder.opened(folder).register(name, key)
    say(f"{new.name} is client {new.number}")


# ---- clients ----


@client.command("init")
def client_init(
    folder: Folder,
    address: Annotated[str, typer.Option("--server", metavar="HOST:PORT", help="where the server is")],
    authority: Annotated[Path, typer.Option("--ca", metavar="CA.crt", help="the server's certificate authority")],
    port: Annotated[int, typer.Option(help="a free port of this machine, for Flower's SuperNode", min=1, max=65535)] = 9200,
    system: Annotated[
        bool, typer.Option("--system", help="as root: users and systemd units that keep Flower from model and data")
    ] = False,
) -> None:
    """Make a client's folder, with a key.

    Its client.toml is a template to fill in; one that is there already is kept.
    """
    from fedmrl.flower.client_folder import ClientFolder
    from fedmrl.flower.separation import UNPROTECTED, separate

    made = ClientFolder.create(folder, address, authority, port)
    say(f"Fill in {made.config_file}, and send {made.public_key} to the server's operator.")
    if system:
        for line in separate(made):
            say(line)
    else:
        notice(UNPROTECTED)


@client.command("check")
def client_check(
    folder: Folder,
    recipe: Annotated[str | None, typer.Option(help="the recipe that the server wants to run")] = None,
) -> None:
    """Try a client without the network.

    Reads the data and builds the model. With --recipe, it also trains the model and says what would leave.
    """
    from fedmrl.config import load_named
    from fedmrl.flower.client_folder import ClientFolder

    found = ClientFolder.opened(folder).check(load_named(recipe).recipe if recipe else None)
    for line in found.lines:
        say(line)
    if found.leaving:
        made = table("What would leave in each round", "tensor", "shape", "type")
        for row in found.leaving:
            made.add_row(*row)
        show(made)


@client.command("start")
def client_start(
    folder: Folder,
    agent_only: Annotated[
        bool, typer.Option("--agent-only", help="start the agent alone; a unit of its own starts Flower's SuperNode")
    ] = False,
) -> None:
    """Run the client until it is stopped."""
    from fedmrl.flower.client_folder import ClientFolder, serve

    serve(ClientFolder.opened(folder), agent_only)


@client.command("export")
def client_export(
    folder: Folder,
    to: Annotated[Path, typer.Option("--to", help="file to write, ending in .onnx, .pt2 or .safetensors")],
    mode: Annotated[str | None, typer.Option("--mode", help="a mode of the method (default: the run's)")] = None,
    run: Annotated[str | None, typer.Option("--run", help="the run, if the client has taken part in several")] = None,
) -> None:
    """Write the client's trained model to a file."""
    from fedmrl.flower.client_config import load_organisation
    from fedmrl.flower.client_folder import ClientFolder
    from fedmrl.flower.own_model import trained_client

    trained, line = trained_client(load_organisation(ClientFolder.opened(folder).config_file), run)
    path = trained.export(to, mode)
    say(f"Model: {path} ({path.stat().st_size:,} bytes; mode {mode or trained.mode}), {line}")


@client.command("audit")
def client_audit(
    folder: Folder,
    came_in: Annotated[bool, typer.Option("--in", help="what came in, in the place of what left")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what has really left, after checking that the log is whole."""
    from fedmrl.flower.audit import COLUMNS, read_audit
    from fedmrl.flower.audit import table as audit_rows
    from fedmrl.flower.client_folder import ClientFolder

    entries = read_audit(Path(ClientFolder.opened(folder).config().state), notice)
    if as_json:
        print_json(entries)
        return
    rows = audit_rows(entries, "in" if came_in else "out")
    for run in dict.fromkeys(run for run, *_ in rows):
        # The SHA-256 of each message is in the log, and with --json; a table with them would not fit a terminal.
        title = f"What {'came in' if came_in else 'left'} {f'in run {run}' if run else 'in reply to messages of no run'}"
        made = table(title, *COLUMNS[1:-1], wraps="tensor")
        for of_run, *row, _ in rows:
            if of_run == run:
                made.add_row(*row)
        show(made)


# ---- runs ----


@federation.command("run")
def federation_run(
    recipe: Annotated[str | None, typer.Argument(metavar="RECIPE", help="a recipe's name or a TOML file")] = None,
    folder: Server = Path("server"),
    name: Annotated[str | None, typer.Option(help="the run's name; by default the recipe's, its method and a number")] = None,
    settings: SettingsOption = None,
    imports: Imports = None,
    resume: Annotated[str | None, typer.Option(metavar="NAME", help="go on with this run")] = None,
) -> None:
    """Start a run, or go on with one. It goes on when this command has returned."""
    from fedmrl.config import load_named
    from fedmrl.flower.server_folder import ServerFolder, run_recipe

    if (recipe is None) == (resume is None):
        raise UserError("give a recipe to start, or --resume and a run's name")
    opened = ServerFolder.opened(folder)
    if resume is not None:
        started, chosen = opened.run(resume), resume
    else:
        named = load_named(recipe or "", settings or [], imports=imports or [], on_notice=notice)
        chosen = name if name is not None else opened.free_name(f"{Path(named.name).stem}-{named.recipe.method.name}")
        started = opened.run(chosen, run_recipe(named.recipe, len(opened.registered())))
    say(f"{chosen} has started, as Flower's run {started}.")
    say(f"How it goes: fedmrl federation status --server {folder}")


@federation.command("recipe")
def federation_recipe(
    recipe: RecipeName, folder: Server = Path("server"), settings: SettingsOption = None, imports: Imports = None
) -> None:
    """Print a recipe as clients get it, with its SHA-256.

    A client runs only this recipe if its bounds.recipe_sha256 has that SHA-256.
    """
    from fedmrl.config import load_named
    from fedmrl.files import sha256_of_text
    from fedmrl.flower.server_folder import ServerFolder, recipe_text, run_recipe

    clients = len(ServerFolder.opened(folder).registered())
    named = load_named(recipe, settings or [], imports=imports or [], on_notice=notice)
    text = recipe_text(run_recipe(named.recipe, clients))
    print_text(text)
    notice(f"SHA-256, for {clients} clients: {sha256_of_text(text)}")


@federation.command("status")
def federation_status(
    folder: Server = Path("server"),
    log: Annotated[str | None, typer.Option(metavar="NAME", help="print what this run has said")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the runs: where each is, and whether it can be resumed."""
    from fedmrl.flower.server_folder import ServerFolder

    opened = ServerFolder.opened(folder)
    if log is not None:
        print_text(opened.log(log))
        return
    rows = opened.status()
    if as_json:
        print_json([row._asdict() for row in rows])
        return
    made = table("Runs", "run", "state", "rounds", "clients", "left out", wraps="state")
    for row in rows:
        made.add_row(row.run, row.state, f"{row.rounds} of {row.total}", str(row.clients), str(row.left_out))
    show(made)


@federation.command("results")
def federation_results(
    name: Annotated[str, typer.Argument(help="the run's name")], folder: Server = Path("server"), as_json: AsJson = False
) -> None:
    """Show the result of a run that has ended."""
    from fedmrl.cli import render
    from fedmrl.flower.server_folder import ServerFolder
    from fedmrl.results import RunResult

    path = ServerFolder.opened(folder).run_folder(name)
    result = RunResult.read(path)
    print_json({"folder": str(path), **result.plain()}) if as_json else render.one_run(result.recipe, result, path)


def deal(
    recipe: RecipeName,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a new folder")],
    settings: SettingsOption = None,
    imports: Imports = None,
) -> None:
    """Write folders of clients, for trials."""
    from fedmrl.config import load_named
    from fedmrl.flower.deal import deal as deal_clients

    made = deal_clients(load_named(recipe, settings or [], imports=imports or [], on_notice=notice).recipe, folder)
    say(f"{len(made)} clients are in {folder}: {made[0].name} to {made[-1].name}")


@demo.command("federation")
def demo_federation(
    folder: Annotated[Path, typer.Option("--out", help="a new folder to write")] = Path("federation-demo"),
) -> None:
    """Run a server and three clients on this machine.

    The clients have different models; they connect with TLS and registered keys, for five rounds of digits.
    """
    from fedmrl.cli import render
    from fedmrl.flower.demo import run_demo
    from fedmrl.report.page import write_page

    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; delete it, or name a new folder with --out")
    try:
        result = run_demo(folder, notice)
    except KeyboardInterrupt:
        end("stopped; all of its processes have ended", 130)
    assert result.folder is not None
    render.one_run(result.recipe, result, result.folder, write_page([result.folder]))


def _foreground(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Becomes this program, which gets the terminal's and the service manager's signals itself."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_DFL)
    os.execve(command[0], list(command), dict(env))


__all__ = ["client", "deal", "demo", "federation", "server"]
