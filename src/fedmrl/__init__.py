"""Model-heterogeneous federated learning: FedMRL and the methods it is compared with."""

from fedmrl.config import Recipe, load_recipe
from fedmrl.errors import DivergedError, InterruptedRun, UserError
from fedmrl.federation import Run, run, run_seeds
from fedmrl.models import OwnModel, Split, split

__all__ = [
    "DivergedError",
    "InterruptedRun",
    "OwnModel",
    "Recipe",
    "Run",
    "Split",
    "UserError",
    "load_recipe",
    "run",
    "run_seeds",
    "split",
]
__version__ = "0.1.0"
