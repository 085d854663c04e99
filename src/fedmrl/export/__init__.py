"""Trained models for use elsewhere: each client's final net, as a predictor, an ONNX file, a .pt2 file or safetensors."""

from fedmrl.export.client import TrainedClient
from fedmrl.export.final_nets import FinalNets, InMemory, InRunFolder
from fedmrl.export.from_folder import nets_in_folder
from fedmrl.export.modes import MeasuredMode
from fedmrl.export.predictor import Predictor

__all__ = ["FinalNets", "InMemory", "InRunFolder", "MeasuredMode", "Predictor", "TrainedClient", "nets_in_folder"]
