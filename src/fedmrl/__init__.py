"""Model-heterogeneous federated learning: FedMRL and the methods it is compared with."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedmrl.errors import DivergedError, InterruptedRun, UserError
from fedmrl.version import __version__

if TYPE_CHECKING:
    from fedmrl.aggregation import Aggregation
    from fedmrl.comparison import Comparison, compare
    from fedmrl.config import Recipe, load_recipe
    from fedmrl.data import Dataset, DataSource, Samples
    from fedmrl.federation import run, run_seeds
    from fedmrl.methods import FD, FML, FedAPEN, FedKD, FedMRL, FedProto, LGFedAvg, Method, Standalone, WeightSharing
    from fedmrl.models import Model, OwnModel, Split, split
    from fedmrl.plugins import register
    from fedmrl.results import DivergedRun, RunResult

_MODULES = {
    "aggregation": ("Aggregation",),
    "data": ("DataSource", "Dataset", "Samples"),
    "plugins": ("register",),
    "comparison": ("Comparison", "compare"),
    "config": ("Recipe", "load_recipe"),
    "federation": ("run", "run_seeds"),
    "methods": (
        "FD", "FML", "FedAPEN", "FedKD", "FedMRL", "FedProto", "LGFedAvg", "Method", "Standalone", "WeightSharing",
    ),
    "models": ("Model", "OwnModel", "Split", "split"),
    "results": ("DivergedRun", "RunResult"),
}  # fmt: skip
_SUBMODULES = ("aggregation", "data", "engines", "methods", "models")
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "FD",
    "FML",
    "Aggregation",
    "Comparison",
    "DataSource",
    "Dataset",
    "DivergedError",
    "DivergedRun",
    "FedAPEN",
    "FedKD",
    "FedMRL",
    "FedProto",
    "InterruptedRun",
    "LGFedAvg",
    "Method",
    "Model",
    "OwnModel",
    "Recipe",
    "RunResult",
    "Samples",
    "Split",
    "Standalone",
    "UserError",
    "WeightSharing",
    "__version__",
    "compare",
    "load_recipe",
    "register",
    "run",
    "run_seeds",
    "split",
]


def __getattr__(name: str) -> Any:
    """Loads public names on first use, so that `import fedmrl` does not import torch."""
    if name in _SUBMODULES:
        return import_module(f"fedmrl.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fedmrl' has no attribute {name!r}")
    return getattr(import_module(f"fedmrl.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
