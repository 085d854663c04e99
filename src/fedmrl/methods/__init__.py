"""The methods by name."""

from fedmrl.methods.base import Batch, ClientNet, Common, Header, Method, Round, Task, WeightSharing
from fedmrl.methods.fd import FD
from fedmrl.methods.fedapen import FedAPEN
from fedmrl.methods.fedkd import FedKD
from fedmrl.methods.fedmrl import FedMRL
from fedmrl.methods.fedproto import FedProto
from fedmrl.methods.fml import FML
from fedmrl.methods.lg_fedavg import LGFedAvg
from fedmrl.methods.standalone import Standalone

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Standalone, LGFedAvg, FD, FedProto, FML, FedKD, FedAPEN, FedMRL)
}

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
