"""Data: where samples come from, which client has which, and in what order it sees them."""

from fedmrl.data.partition import ClientSplit
from fedmrl.data.sources import Dataset

__all__ = ["ClientSplit", "Dataset"]
