"""Federated learning methods, by name."""

from fedmrl.methods.base import Batch, ClientNet, Common, Header, Method, Round, Task, WeightSharing
from fedmrl.methods.fd import FD
from fedmrl.methods.fedapen import FedAPEN
from fedmrl.methods.fedkd import FedKD
from fedmrl.methods.fedmrl import FedMRL
from fedmrl.methods.fedproto import FedProto
from fedmrl.methods.fml import FML
from fedmrl.methods.lg_fedavg import LGFedAvg
from fedmrl.methods.standalone import Standalone
from fedmrl.registry import Registry

METHODS: Registry[type[Method]] = Registry("method", "fedmrl.methods")
for _method in (Standalone, LGFedAvg, FD, FedProto, FML, FedKD, FedAPEN, FedMRL):
    METHODS.add(_method.name, _method, module=_method.__module__)

__all__ = [
    "FD",
    "FML",
    "METHODS",
    "Batch",
    "ClientNet",
    "Common",
    "FedAPEN",
    "FedKD",
    "FedMRL",
    "FedProto",
    "Header",
    "LGFedAvg",
    "Method",
    "Round",
    "Standalone",
    "Task",
    "WeightSharing",
]
