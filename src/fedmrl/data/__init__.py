"""Data: datasets, their partition over clients, and the order of each client's samples."""

from fedmrl.data.cifar import Cifar10, Cifar100
from fedmrl.data.files import Files
from fedmrl.data.given import dataset_of
from fedmrl.data.partition import ClientSplit
from fedmrl.data.preparation import Preparation
from fedmrl.data.sources import SOURCES, Arrays, Dataset, DataSource, Digits, Given, Samples

__all__ = [
    "SOURCES",
    "Arrays",
    "Cifar10",
    "Cifar100",
    "ClientSplit",
    "DataSource",
    "Dataset",
    "Digits",
    "Files",
    "Given",
    "Preparation",
    "Samples",
    "dataset_of",
]
