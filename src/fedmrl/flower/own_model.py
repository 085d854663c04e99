"""An organisation's own trained model, from its agent's states of a run."""

from dataclasses import dataclass
from pathlib import Path

import torch

from fedmrl.errors import UserError
from fedmrl.export import TrainedClient
from fedmrl.export.final_nets import Final
from fedmrl.federation.setup import prepare_alone
from fedmrl.federation.simulated import final_nets_of
from fedmrl.flower.checks import Refused, approved_recipe
from fedmrl.flower.client_config import Organisation
from fedmrl.flower.states import INDEX, RunStates
from fedmrl.messages import Tensors


@dataclass(frozen=True)
class _AtAgent:
    """The state after the client's last training, with what the server has sent last, if anything."""

    state: Tensors
    received: Tensors | None

    def of(self, client: int) -> Final:
        """See `FinalStates`. Without anything received, the shared part is the client's own copy."""
        return Final({}, self.state, self.received or {})


def trained_client(organisation: Organisation, run: str | None = None) -> tuple[TrainedClient, str]:
    """The client's model after its last training in a run (default: the only one), and a line on its shared part."""
    states = _states(Path(organisation.config.state) / "runs", run)
    index = states.index
    if not index.states:
        raise UserError(f"the client has not trained in run {index.run}, so there is no trained model")
    if not index.recipe:
        raise UserError(f"run {index.run} is of an older version, which kept no recipe; take part once more")
    try:
        recipe = approved_recipe(index.recipe, organisation.config.bounds)
    except Refused as refused:
        raise UserError(f"the recipe of run {index.run} is not within this client's bounds any more: {refused}") from refused
    final = _final(states, recipe.method.hears_server)
    data, member = organisation.in_run(recipe, index.client)
    setting = prepare_alone(recipe, torch.device("cpu"), index.client, member, data)
    nets = final_nets_of(setting, final)
    if not recipe.method.hears_server:
        line = "predictions use nothing of the server's"
    elif final.received is None:
        line = "with the shared part as this client trained it last; the server has sent none for an evaluation since"
    else:
        line = "with the shared part that the server sent last"
    return TrainedClient(nets, index.client, recipe.headline_mode, {}), line


def _final(states: RunStates, hears_server: bool) -> _AtAgent:
    """The newest state, with what was received. An agent that is running may replace the files while they are read."""
    while True:
        try:
            return _AtAgent(states.load(max(states.index.states)), states.received() if hears_server else None)
        except UserError:
            newer = RunStates.open(states.folder)
            if newer is None or newer.index == states.index:
                raise
            states = newer


def _states(folder: Path, run: str | None) -> RunStates:
    found = sorted(path.parent.name for path in folder.glob(f"*/{INDEX}"))
    if not found:
        raise UserError(f"{folder} has no run; let the client take part in one")
    if run is None and len(found) > 1:
        raise UserError(f"{folder} has several runs ({', '.join(found)}); name one as run")
    if run is not None and run not in found:
        raise UserError(f"{folder} has no run {run!r}; it has {', '.join(found)}")
    states = RunStates.open(folder / (run or found[0]))
    assert states is not None
    return states
