"""FLOPs of local training, by torch's counter on one client."""

from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedmrl.engines import Setting
from fedmrl.engines.base import failures_told
from fedmrl.methods import Batch
from fedmrl.models import ModelSpec
from fedmrl.randomness import torch_seeded

_COUNTED_ON = 2  # samples, as batch normalisation needs two


class FlopCounter:
    """Counts the FLOPs of clients' local training; clients with the same kind of model have the same cost per sample."""

    def __init__(self, setting: Setting) -> None:
        # On the host, to keep the GPU free: FLOPs depend only on shapes.
        self.setting = replace(setting, device=torch.device("cpu"))
        self._per_sample: dict[tuple[ModelSpec, bool], list[float]] = {}
        self._per_round: dict[tuple[int, bool], int] = {}

    def of_round(self, client: int, earlier: int) -> int:
        """FLOPs of a client's round, forward and backward over all its samples, after `earlier` earlier rounds."""
        key = (client, earlier > 0)
        if key not in self._per_round:
            self._per_round[key] = self._of_round(client, earlier)
        return self._per_round[key]

    def _of_round(self, client: int, earlier: int) -> int:
        sizes = {name: len(positions) for name, positions in self.setting.subsets(client).items()}
        phases = self.setting.method.phases(self.setting.training, earlier)
        costs = self.of_sample(client, earlier)
        spent = (cost * sizes[phase.subset] * phase.epochs for cost, phase in zip(costs, phases, strict=True))
        return round(sum(spent))

    def of_sample(self, client: int, earlier: int) -> list[float]:
        """FLOPs of one sample in a training step, for each phase."""
        key = (self.setting.members[client].model, earlier > 0)
        if key not in self._per_sample:
            net, models = self.setting.fresh_net(client), [self.setting.members[client].model]
            x = self.setting.data.blank(_COUNTED_ON, self.setting.device, self.setting.dtype)
            y_B = torch.zeros(_COUNTED_ON, device=self.setting.device, dtype=torch.long)
            costs = []
            for phase in self.setting.method.phases(self.setting.training, earlier):
                net.learn(phase.lr)
                with (
                    failures_told(models, f"client {client}", "trains", self.setting.method),
                    FlopCounterMode(display=False) as counter,
                    torch_seeded(self.setting.seed, "flops"),
                ):
                    outcome = phase.loss(net, Batch(x, y_B))
                    loss = outcome[0] if isinstance(outcome, tuple) else outcome
                    torch.autograd.backward(loss)
                costs.append(counter.get_total_flops() / _COUNTED_ON)
            self._per_sample[key] = costs
        return self._per_sample[key]
