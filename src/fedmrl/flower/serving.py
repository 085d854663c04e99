"""A run of a federation: the round loop with clients over Flower, in a run's folder, resumed if it is there."""

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flwr.serverapp import Grid

from fedmrl.config import Recipe, load_named
from fedmrl.data.sources import AtClients
from fedmrl.engines import Terms
from fedmrl.errors import UserError
from fedmrl.federation.folder import RunFolder
from fedmrl.federation.server import Federation, run_in_step
from fedmrl.federation.setup import schedule, terms_elsewhere
from fedmrl.flower.flower_clients import FlowerClients, Members
from fedmrl.flower.grid import Post
from fedmrl.flower.server_folder import ServerFolder, check_name
from fedmrl.results import Outcome, Record

MEMBERS = "federation.json"


def check_rounds(recipe: Recipe, least: int) -> None:
    """Raises `UserError` if a round of all clients would ask fewer than `least`, or too few for the aggregation rule."""
    fewest = min(map(len, schedule(recipe)))
    if fewest < least:
        raise UserError(
            f"a round asks {fewest} of {recipe.clients} clients, and min_clients is {least}; raise participation, or lower "
            "min_clients"
        )
    recipe.aggregation.check(fewest)


def known_members(file: Path) -> Members | None:
    """The members of a run that has begun, else None; raises `UserError` if its rounds are there and they are not."""
    if file.exists():
        return Members.read(file)
    if (records := file.parent / "rounds.jsonl").exists() and records.stat().st_size:
        raise UserError(f"{file} is missing, which says who takes part; restore it from a backup, or start a new run")
    return None


def serve(grid: Grid, server: ServerFolder, name: str, tell: Callable[[str], None]) -> Outcome:
    """Runs the recipe that is stored under this name to its end, or goes on with the run of this name."""
    check_name(name)
    config, path = server.config(), server.runs / name
    if (path / "summary.json").exists():
        raise UserError(f"run {name} has ended; its result is in {path}")
    resumes = (path / "config.toml").exists()
    recipe = load_named(path / "config.toml" if resumes else server.recipes / f"{name}.toml").recipe
    if not isinstance(data := recipe.data, AtClients) or not data.shape or not data.classes:
        raise UserError(
            f"{name}: data must be {{name = 'at-clients', shape = […], classes = […]}}; 'federation run' writes it so"
        )
    check_rounds(recipe, config.min_clients)
    terms = terms_elsewhere(recipe, data.shape, data.classes, data.vocabulary)
    file = path / MEMBERS
    members = known_members(file) or Members(run=f"{name}-{secrets.token_hex(4)}")
    post = Post(grid, server.registered)
    clients = FlowerClients(post, server.registered, recipe, terms, config, members, tell)
    folder = RunFolder.reopen(path, recipe, []) if resumes else None
    try:
        clients.gather(config.min_clients, config.wait_seconds)
        folder = folder or RunFolder.create(path, recipe, [])
        folder.saves_every_round = True
        clients.file = file
        clients.write_members()
        federation = _federation(recipe, terms, clients, folder, tell)

        def on_round(record: Record) -> None:
            tell(_line(record, recipe))
            if record.round < recipe.rounds:
                clients.admit()

        return run_in_step(clients, [federation], on_round)[0]
    finally:
        if folder is not None:
            folder.close()


def _federation(
    recipe: Recipe, terms: Terms, clients: FlowerClients, folder: RunFolder, tell: Callable[[str], None]
) -> Federation:
    now = folder.load(clients.device, partial(clients.restore, 0), tell)
    if now is not None:
        tell(f"going on after round {now.rounds} of {recipe.rounds}")
    ran_on = "reference", "the clients' own machines"
    return Federation(recipe, terms, clients, schedule(recipe, list(clients.roster())), now=now, folder=folder, ran_on=ran_on)


def _line(record: Record, recipe: Recipe) -> str:
    """A round in a line, for the run's log."""
    asked, came = len(record.asked or record.participants), len(record.participants)
    loss = f", loss {record.loss:.4f}" if record.loss is not None else ""
    left_out = "".join(f"; client {one.client} {one.reason}; left out" for one in record.left_out)
    return f"round {record.round} of {recipe.rounds}: {came} of {asked} clients{loss}{left_out}"


__all__ = ["MEMBERS", "check_rounds", "known_members", "serve"]
