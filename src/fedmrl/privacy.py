"""Differential privacy for methods that share weights: clipping, noise, and the privacy spent (epsilon).

Protected is a client with all its samples: neighbouring federations differ by the data of one client, replaced by any other.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedmrl.errors import UserError
from fedmrl.messages import Tensors
from fedmrl.randomness import generator
from fedmrl.table import Table

Floats = NDArray[np.float64]
Draw = Callable[[int], Floats]
"""Draws this many independent standard normal numbers."""


class Privacy(Table):
    """The recipe's `[privacy]` table."""

    mode: Literal["central", "local"] = Field(
        description="central: a trusted server clips updates and adds noise to their mean; local: each client does to its own"
    )
    clip: Annotated[float, Field(gt=0)] = Field(description="largest L2 norm of a client's update; longer ones are scaled down")
    noise: Annotated[float, Field(gt=0)] = Field(
        description="noise multiplier: the noise in the sum of updates (local: in each one) has standard deviation noise × clip"
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(description="the delta at which epsilon is given; below 1 / clients")
    budget: Annotated[float, Field(gt=0)] | None = Field(
        None, description="largest epsilon: the run ends before the round that would exceed it"
    )
    simulation: bool = Field(
        False, description="draw the noise from the seed: repeatable, and no protection; else from the operating system"
    )

    def draw(self, seed: int, round_: int, client: int | None = None) -> Draw:
        """The source of the server's noise in a round, or of a client's."""
        if not self.simulation:
            return system_normal
        key = (round_,) if client is None else (round_, client)
        return generator(seed, "privacy noise", *key).standard_normal

    def own_upload(self, upload: Mapping[str, Tensor], received: Mapping[str, Tensor], draw: Draw) -> Tensors:
        """A client's upload as it may leave the client in local mode: what it received, its clipped update, and noise."""
        updates = clipped_update(upload, received, self.clip)
        return _noisy(received, updates, self.noise * self.clip, draw)

    def server_mean(
        self, server: Mapping[str, Tensor], uploads: Sequence[Mapping[str, Tensor]], asked: int, draw: Draw
    ) -> Tensors:
        """The server's next state in central mode: its state, the mean of the clipped updates over those asked, and noise.

        A client that was asked and did not reply counts with an update of 0. With the number of replies as the divisor, one
        client's silence would change the divisor, too, and the mean could move by more than 2 · clip / asked, for which the
        noise is made.
        """
        updates = [clipped_update(upload, server, self.clip) for upload in uploads]
        mean = {}
        for name, tensor in server.items():
            zero = torch.zeros_like(tensor, dtype=torch.float64)
            mean[name] = sum((update[name] for update in updates), zero) / asked
        return _noisy(server, mean, self.noise * self.clip / asked, draw)


def clipped_update(upload: Mapping[str, Tensor], received: Mapping[str, Tensor], clip: float) -> Tensors:
    """The change of the shared tensors in double precision, scaled down if its L2 norm over all of them exceeds `clip`.

    >>> clipped_update({"w": torch.tensor([4.0, 5.0])}, {"w": torch.tensor([1.0, 1.0])}, clip=1.0)
    {'w': tensor([0.6000, 0.8000], dtype=torch.float64)}
    """
    update = {name: tensor.double() - received[name].double() for name, tensor in upload.items()}
    norm = torch.stack([torch.linalg.vector_norm(tensor) for tensor in update.values()]).norm()
    scale = (clip / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1.0)
    return {name: tensor * scale for name, tensor in update.items()}


def _noisy(before: Mapping[str, Tensor], update: Mapping[str, Tensor], deviation: float, draw: Draw) -> Tensors:
    """The sum of both and of noise with this standard deviation."""
    drawn: Tensors = {}
    for name in sorted(update):  # so that simulated noise does not depend on the order in which a checkpoint lists tensors
        tensor = before[name]
        noise = torch.from_numpy(draw(tensor.numel())).to(tensor.device).view(tensor.shape)
        drawn[name] = (tensor.double() + update[name] + deviation * noise).to(tensor.dtype)
    return {name: drawn[name] for name in update}


def system_normal(count: int) -> Floats:
    """Standard normal numbers from the operating system's cryptographic generator, `os.urandom`.

    Each is made of 52 random bits by the inverse of the normal distribution function.
    """
    from scipy.special import ndtri

    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(12)
    normal: Floats = ndtri((bits + 0.5) * 2.0**-52)  # strictly between 0 and 1, so never infinite
    return normal


class Ledger:
    """The rounds that have spent privacy, and the epsilon that they add up to."""

    def __init__(self, privacy: Privacy) -> None:
        self.privacy = privacy
        self._rounds: Counter[tuple[int, int]] = Counter()  # by the number of clients asked, and of all
        self._times: Counter[int] = Counter()  # rounds in which each client was asked

    def spend(self, clients: int, asked: Sequence[int]) -> None:
        """Adds a round in which these were asked, of so many clients."""
        self._rounds[len(asked), clients] += 1
        self._times.update(asked)

    def exceeds(self, clients: int, asked: Sequence[int]) -> bool:
        """Whether one more such round would exceed the budget."""
        if self.privacy.budget is None:
            return False
        following = Ledger(self.privacy)
        following._rounds, following._times = self._rounds.copy(), self._times.copy()
        following.spend(clients, asked)
        return following.epsilon > self.privacy.budget

    @property
    def epsilon(self) -> float:
        """The epsilon spent so far: towards those who do not know who took part, in central mode; else `epsilon_if_known`."""
        if self.privacy.mode == "local":
            return self.epsilon_if_known
        return self._epsilon(sum(times * _rdp(self.privacy.noise, *drawn) for drawn, times in self._rounds.items()))

    @property
    def epsilon_if_known(self) -> float:
        """The epsilon spent towards those who know who took part when: that of the client that was asked most often."""
        return self._epsilon(max(self._times.values(), default=0) * _rdp(self.privacy.noise, 1, 1))

    def _epsilon(self, rdp: Floats | int) -> float:
        if not self._rounds:
            return 0.0
        from dp_accounting.rdp import RdpAccountant, compute_epsilon

        return float(compute_epsilon(RdpAccountant().orders, rdp, self.privacy.delta)[0])


@cache
def _rdp(noise: float, asked: int, clients: int) -> Floats:
    """The Rényi divergences of a round, by order, in which `asked` of `clients` clients are drawn without replacement.

    The accountant counts noise in units of the sensitivity. A client that is replaced moves the sum of the updates from any
    point of a ball of radius `clip` to any other, so by up to 2 · clip: hence half the noise multiplier.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(clients, asked, dp_accounting.GaussianDpEvent(noise / 2)))
    rdp: Floats = accountant.rdp
    return rdp


def check_privacy(privacy: Privacy, clients: int, first: Sequence[int], start: Mapping[str, Tensor]) -> None:
    """Raises `UserError` if nothing can be protected like this; `first` are the clients of the first round.

    `start` is the server's initial state, whose tensors are to be noised.
    """
    try:
        import dp_accounting.rdp  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"privacy needs the package dp-accounting, which cannot be loaded here ({error}); get it with: "
            "pip install 'fedmrl[privacy]'"
        ) from error
    whole = [name for name, tensor in start.items() if not tensor.is_floating_point()]
    if whole:
        raise UserError(
            f"privacy adds noise to what clients share, and {whole[0]} holds whole numbers, to which none can be added; choose "
            "a shared model without it (batch normalisation counts its batches so)"
        )
    ledger = Ledger(privacy)
    if ledger.exceeds(clients, first):
        ledger.spend(clients, first)
        raise UserError(
            f"privacy.budget is {privacy.budget:g}, and a single round spends an epsilon of {ledger.epsilon:.3g}; raise the "
            "budget or privacy.noise"
        )
