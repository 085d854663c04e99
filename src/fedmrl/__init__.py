"""Model-heterogeneous federated learning: FedMRL and the methods it is compared with."""

from fedmrl.config import Recipe, load_recipe
from fedmrl.errors import DivergedError, InterruptedRun, UserError
from fedmrl.federation import Run, run, run_seeds
from fedmrl.models import OwnModel, Split, split
from fedmrl.version import __version__

__all__ = [
    "DivergedError",
    "InterruptedRun",
    "OwnModel",
    "Recipe",
    "Run",
    "Split",
    "UserError",
    "__version__",
    "load_recipe",
    "run",
    "run_seeds",
    "split",
]
