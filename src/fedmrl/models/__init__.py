"""Models: anything that splits into a feature extractor and a prediction header."""

from fedmrl.models.cnn import CNN, CNNS
from fedmrl.models.split import ModelSpec, OwnModel, Split, split

__all__ = ["CNN", "CNNS", "ModelSpec", "OwnModel", "Split", "split"]
