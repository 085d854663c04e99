"""Clients' initial weights, drawn ahead of time."""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch

from fedmrl.engines import Setting
from fedmrl.messages import size
from fedmrl.methods import ClientNet

_WAITING = 2 * 1024**3  # bytes of drawn nets that may wait in the host's memory


class InitialNets:
    """Clients' initial nets, drawn in `order` by a background thread if `ahead`.

    Drawing a client's weights on the host takes longer than training it for a round on a GPU.
    """

    def __init__(self, setting: Setting, order: Iterable[int], ahead: bool) -> None:
        self._setting = setting
        self._host = replace(setting, device=torch.device("cpu"))
        self._upcoming = iter(order)
        self._taken: set[int] = set()
        self._drawn: dict[int, Future[ClientNet]] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="first-weights") if ahead else None

    def take(self, client: int) -> ClientNet:
        """A client's initial net, on the device."""
        if self._pool is None:
            return self._setting.fresh_net(client)
        net = self._drawn.pop(client).result() if client in self._drawn else self._host.fresh_net(client)
        self._taken.add(client)
        room = max(1, _WAITING // max(1, size(net.state_dict()).bytes))
        while len(self._drawn) < room and (after := next(self._upcoming, None)) is not None:
            if after not in self._taken:
                self._drawn[after] = self._pool.submit(self._host.fresh_net, after)
        return net.to(self._setting.device)

    def close(self) -> None:
        """Stops the background thread."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
