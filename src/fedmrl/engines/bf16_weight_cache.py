"""A cache of bf16 copies of the weights, so that a step in bf16 does not cast all of them again."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_CAST, _WRITE = _aten._to_copy.default, _aten.copy_.default
_VIEWS = {
    _aten.slice.Tensor, _aten.view.default, _aten.select.int, _aten.unsqueeze.default, _aten.permute.default,
    _aten.transpose.int, _aten.t.default, _aten.expand.default,
}  # fmt: skip


class Bf16WeightCache:
    """Rewrites a traced step: an argument that it casts to bf16 and writes at its end is read from a bf16 copy instead,
    which becomes a further argument that the step also writes. Saves a pass over all weights, with the same results.
    """

    def __init__(self, step: GraphModule, arguments: list[Tensor]) -> None:
        self._exact: list[Tensor] = []
        self.copies: list[Tensor] = []
        """The additional arguments of the step."""
        inputs = [node for node in step.graph.nodes if node.op == "placeholder"]
        for argument, tensor in zip(inputs, arguments, strict=True):
            casts = list(_casts(argument))
            writes = [node for node in argument.users if node.target is _WRITE and node.args[0] is argument]
            if len(writes) == 1 and casts and all(cast < writes[0] for cast in casts):
                self._keep(step, argument, tensor, casts, writes[0])
        step.graph.lint()
        step.recompile()

    def refresh(self) -> None:
        """Updates the copies after the weights were changed outside the step."""
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
    """The casts of a node, or of a view of it, to bf16."""
    for user in node.users:
        if user.target is _CAST and _only_casts(user):
            yield user
        elif user.target in _VIEWS:
            yield from _casts(user)


def _same_view(step: GraphModule, cast: Node, argument: Node, copy: Node) -> Node:
    """The view that the cast reads, taken from the copy."""
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


def _only_casts(node: Node) -> bool:
    return dict(node.kwargs) == {"dtype": torch.bfloat16}
