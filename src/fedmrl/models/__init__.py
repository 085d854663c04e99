"""Models: anything that splits into a feature extractor and a prediction header."""

from fedmrl.models.cnn import CNN, CNNS
from fedmrl.models.mlp import MLP
from fedmrl.models.split import ModelSpec, OwnModel, SharedSpec, Split, split

__all__ = ["CNN", "CNNS", "MLP", "ModelSpec", "OwnModel", "SharedSpec", "Split", "split"]
