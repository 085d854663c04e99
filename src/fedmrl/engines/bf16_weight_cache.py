"""Weights that are kept rounded beside themselves, so that a step of reduced precision need not round all of them anew."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_ROUND, _WRITE = _aten._to_copy.default, _aten.copy_.default
_VIEWS = {
    _aten.slice.Tensor, _aten.view.default, _aten.select.int, _aten.unsqueeze.default, _aten.permute.default,
    _aten.transpose.int, _aten.t.default, _aten.expand.default,
}  # fmt: skip


class Bf16WeightCache:
    """Changes a traced step: where it rounds an argument that it writes to at its end, it takes a rounded copy as a further
    argument instead, and writes to that too. The numbers stay the same; a pass over all weights is saved.
    """

    def __init__(self, step: GraphModule, arguments: list[Tensor]) -> None:
        self._exact: list[Tensor] = []
        self.copies: list[Tensor] = []
        """The further arguments."""
        inputs = [node for node in step.graph.nodes if node.op == "placeholder"]
        for argument, tensor in zip(inputs, arguments, strict=True):
            casts = list(_casts(argument))
            writes = [node for node in argument.users if node.target is _WRITE and node.args[0] is argument]
            if len(writes) == 1 and casts and all(cast < writes[0] for cast in casts):
                self._keep(step, argument, tensor, casts, writes[0])
        step.graph.lint()
        step.recompile()

    def refresh(self) -> None:
        """Round again: the weights are others now."""
        if self.copies:
            torch._foreach_copy_(self.copies, self._exact)

    def _keep(self, step: GraphModule, argument: Node, tensor: Tensor, casts: list[Node], write: Node) -> None:
        last = [node for node in step.graph.nodes if node.op == "placeholder"][-1]
        with step.graph.inserting_after(last):
            copy = step.graph.placeholder(f"rounded_{len(self.copies)}")
        for cast in casts:
            with step.graph.inserting_before(cast):
                cast.replace_all_uses_with(_same_view(step, cast, argument, copy))
            step.graph.erase_node(cast)
        with step.graph.inserting_after(write):
            step.graph.call_function(_WRITE, (copy, write.args[1]))
        self._exact.append(tensor)
        self.copies.append(tensor.to(torch.bfloat16))


def _casts(node: Node) -> Iterator[Node]:
    """Where it, or a view of it, is rounded."""
    for user in node.users:
        if user.target is _ROUND and _only_rounds(user):
            yield user
        elif user.target in _VIEWS:
            yield from _casts(user)


def _same_view(step: GraphModule, cast: Node, argument: Node, copy: Node) -> Node:
    """What the cast rounds, taken from the copy."""
    of = cast.args[0]
    chain = []
    while of is not argument:
        assert isinstance(of, Node)
        chain.append(of)
        of = of.args[0]
    view = copy
    for node in reversed(chain):
        view = step.graph.call_function(node.target, (view, *node.args[1:]), node.kwargs)  # type: ignore[arg-type]
    return view


def _only_rounds(node: Node) -> bool:
    return dict(node.kwargs) == {"dtype": torch.bfloat16}
