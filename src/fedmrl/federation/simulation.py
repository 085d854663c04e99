"""A run in progress whose clients are simulated on this machine, and may be joined by others."""

from fedmrl.config import Recipe
from fedmrl.engines import EngineChoice, Member, Setting
from fedmrl.federation.checkpoint import Snapshot
from fedmrl.federation.server import Federation
from fedmrl.federation.setup import schedule
from fedmrl.federation.simulated import SimulatedClients
from fedmrl.federation.summary import device_name
from fedmrl.messages import Tensors


class Simulation(Federation):
    """A federation of simulated clients that writes nothing."""

    clients: SimulatedClients

    def __init__(self, recipe: Recipe, setting: Setting, engine: EngineChoice = "reference") -> None:
        clients = SimulatedClients([setting], engine)
        ran_on = clients.engine.name, device_name(setting.device)
        super().__init__(recipe, setting.terms, clients, schedule(recipe), ran_on=ran_on)

    def join(self, member: Member) -> int:
        """Adds a client between two rounds and returns its number; the next round may sample it."""
        return self.clients.join(member)

    def states(self, after: Snapshot | None = None) -> dict[int, Tensors]:
        """The states of the clients that have taken part, after the last round or as long as kept after an earlier one."""
        return {client: self.clients.state(client, since) for client, since in (after or self.now).last_round.items()}
