"""A demonstration: a server and three clients with different models on this machine, with TLS and registered keys."""

from collections.abc import Callable
from pathlib import Path

from fedmrl.config import load_recipe
from fedmrl.errors import UserError
from fedmrl.federation.folder import refuse_used
from fedmrl.flower.deal import deal
from fedmrl.flower.local import LocalFederation
from fedmrl.flower.server_folder import run_recipe
from fedmrl.results import RunResult, read_records

SETTINGS = {
    "rounds": 5,
    "clients": 3,
    "participation": 1.0,
    "partition.classes_per_client": 8,
    "evaluation.every": 1,
    "training.epochs": 1,
    "models.local": ["cnn-3", "cnn-4", "cnn-5"],
}
NAME = "demo"


def run_demo(folder: Path, tell: Callable[[str], None]) -> RunResult:
    """Runs the demonstration in a new folder; all of its processes have ended when it returns or raises."""
    refuse_used(folder)
    recipe = load_recipe("quickstart", SETTINGS)
    clients = deal(recipe, folder / "clients")
    tell(f"dealt scikit-learn's digits to {len(clients)} clients in {folder / 'clients'}")
    with LocalFederation(folder, clients, {"min_clients": len(clients), "round_seconds": 600.0}) as local:
        tell("starting the server and the clients, each a process of its own; they find each other over TLS")
        local.start()
        run_id = local.server.run(NAME, run_recipe(recipe, len(clients)))
        tell(f"{recipe.rounds} rounds of {recipe.method.title} ...")
        path, told = local.server.runs / NAME, 0

        def tell_rounds() -> None:
            nonlocal told
            log = path / "rounds.jsonl"
            for record in read_records(log)[told:] if log.exists() else []:
                told = record.round
                tell(f"round {record.round}: {len(record.participants)} clients, loss {record.loss or 0:.3f}")

        status = local.wait(NAME, run_id, 1800, tell_rounds)
        tell_rounds()
        if status != "completed":
            raise UserError(f"the demonstration failed; see {local.folder} for what the programs said")
    return RunResult.read(path)
