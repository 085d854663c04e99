"""Models that split into a feature extractor and a prediction header."""

from fedmrl.models.cnn import CNN, CNNS
from fedmrl.models.mlp import MLP
from fedmrl.models.own import OwnModel
from fedmrl.models.split import Model, ModelSpec, SharedSpec, Split, split
from fedmrl.models.text import Text
from fedmrl.registry import Registry

MODELS: Registry[Model | type[Model]] = Registry("model", "fedmrl.models")
"""Models with fixed fields, and model classes whose fields a recipe sets."""
for _name, _cnn in CNNS.items():
    MODELS.add(_name, _cnn, module=__name__)
for _kind in (CNN, MLP, Text):
    MODELS.add(_kind.name, _kind, module=__name__, listed=False)


def is_own(spec: ModelSpec) -> bool:
    """Whether a model is the user's own code."""
    return type(spec) not in (CNN, MLP, Text)  # one that is derived from them may do anything, too


__all__ = [
    "CNN",
    "CNNS",
    "MLP",
    "MODELS",
    "Model",
    "ModelSpec",
    "OwnModel",
    "SharedSpec",
    "Split",
    "Text",
    "is_own",
    "split",
]
