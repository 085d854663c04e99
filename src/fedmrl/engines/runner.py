"""Runs steps: as Python calls, replayed from a CUDA graph, or compiled and then replayed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedmrl.engines.base import numerics
from fedmrl.engines.bf16_weight_cache import Bf16WeightCache

Way = Literal["eager", "captured", "compiled"]

_OPTIONS: dict[str, Any] = {"triton.coalesce_tiling_analysis": False}  # enabled, torch 2.11 fails to compile a step
_WARM_UP = 3  # steps before a capture, as CUDA graphs require


@dataclass(frozen=True)
class Runner:
    """The device, precision and way in which a program's steps run."""

    device: torch.device
    precision: str
    way: Way

    def prepared(self, gather: Callable[..., Any], fed: Any, step: Callable[..., Any], state: Any) -> Callable[[int], None]:
        """A function that runs `n` times `step(state, *gather(fed))`; the tensors of `fed` and `state` must stay in place."""
        gather_one, step_one = (lambda: gather(fed)), (lambda batch: step(state, *batch))
        refresh = _nothing
        if self.way == "compiled":
            batch = gather(fed)
            with numerics(self.precision, self.device):
                gather_code, step_code = _Code(gather, (fed,)), _Code(step, (state, *batch))
            gather_one, step_one = (lambda: gather_code(fed)), (lambda batch: step_code(state, *batch))
            refresh = step_code.weight_cache.refresh

        def one() -> None:
            step_one(gather_one())  # type: ignore[no-untyped-call]

        if self.way == "eager" or self.device.type != "cuda":

            def eagerly(steps: int) -> None:
                refresh()
                with numerics(self.precision, self.device):
                    for _ in range(steps):
                        one()

            return eagerly
        graph = self._captured(one)

        def replayed(steps: int, kept: Any = one) -> None:  # kept: compiled code may own tensors that the graph reads
            refresh()
            for _ in range(steps):
                graph.replay()

        return replayed

    def _captured(self, one: Callable[[], None]) -> torch.cuda.CUDAGraph:
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with numerics(self.precision, self.device):
            with torch.cuda.stream(side_stream):
                for _ in range(_WARM_UP):
                    one()
            torch.cuda.current_stream().wait_stream(side_stream)
            with torch.cuda.graph(graph):
                one()
        return graph


class _Code:
    """A function, traced with these arguments and compiled, without `vmap`, `grad` or Python overhead left."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        from torch.fx.experimental.proxy_tensor import make_fx

        flat, structure = pytree.tree_flatten(arguments)

        def on_flat(*leaves: Tensor) -> list[Tensor]:
            result, self._shape = pytree.tree_flatten(function(*pytree.tree_unflatten(list(leaves), structure)))
            return result

        graph = make_fx(on_flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*flat)
        self.weight_cache = Bf16WeightCache(graph, flat)
        self._code = torch.compile(graph, fullgraph=True, dynamic=False, options=_OPTIONS)

    def __call__(self, *arguments: Any) -> Any:
        return pytree.tree_unflatten(self._code(*pytree.tree_leaves(arguments), *self.weight_cache.copies), self._shape)


def _nothing() -> None:
    """Does nothing, where no refresh is needed."""
