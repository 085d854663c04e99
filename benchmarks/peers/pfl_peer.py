"""FedAvg by Apple's pfl, simulated in one process, or in several under torchrun.

python benchmarks/peers/pfl_peer.py --folder FOLDER [--threads 2]    # prints one line of JSON; see run.py
python -m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/peers/pfl_peer.py --folder FOLDER --threads 1
"""

import argparse
import functools
import os
import time
from collections.abc import Callable
from importlib.metadata import version

import common
import torch
import torch.nn.functional as F
from pfl.aggregate.base import get_num_datapoints_weight_name
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.common_types import Population
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor


class Net(common.CNN5):
    """The common network with the two methods that pfl asks for."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(F.cross_entropy(self(x), y, reduction="sum")), len(y))}


class Clock(TrainingProcessCallback):
    """When each round ended, and on how many samples it trained."""

    def __init__(self) -> None:
        self.stamps: list[float] = []
        self.samples: list[int] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.stamps.append(time.time())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.stamps.append(time.time())
        points = aggregate_metrics[get_num_datapoints_weight_name(Population.TRAIN)]
        self.samples.append(int(points.weighted_value))
        return False, Metrics()


def clients(arguments: argparse.Namespace) -> FederatedDataset:
    """The common schedule as a sampler of users: a user is a client in a round, since its order differs from round to round."""
    federation = common.read(arguments.folder)
    turns = iter([(round_, client) for round_, who in enumerate(federation.schedule_RM) for client in who])
    next_turn: Callable[[], tuple[int, int]] = functools.partial(next, turns)
    return FederatedDataset(lambda turn: Dataset(federation.samples(*turn)), next_turn)


def main() -> None:
    arguments = common.parser(__doc__).parse_args()
    torch.set_num_threads(arguments.threads)
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # pfl would take a GPU where there is one
    rounds = arguments.warm_up + arguments.rounds
    net, data, clock = Net(), clients(arguments), Clock()
    model = PyTorchModel(
        net,
        local_optimizer_create=functools.partial(torch.optim.SGD, fused=True),
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        # pfl evaluates in the first round in any case, which warms up, and with this frequency never again.
        NNAlgorithmParams(rounds, evaluation_frequency=rounds, train_cohort_size=common.PARTICIPANTS, val_cohort_size=0),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_batch_size=common.BATCH, local_num_epochs=1, local_learning_rate=common.LR),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
    )
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if os.environ.get("RANK", "0") == "0":
        versions = {"pfl": version("pfl")}
        common.report(arguments, net.state_dict(), clock.stamps, clock.samples, processes=processes, versions=versions)
    if processes > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
