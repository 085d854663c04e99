"""Families: kinds of local model that can share a stack, because a trial gives the same results there as alone.

A padded unit never learns: its activation is 0, so its outgoing weights get no gradient, and they are 0, so neither do its
incoming ones. Whether that holds for a family is tested, not assumed from the types of its layers: one step in float64,
stacked and padded, must match each client's own net.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedmrl.data.plan import Samples
from fedmrl.engines.base import Setting
from fedmrl.engines.layers import stackable_layers
from fedmrl.engines.stack import Family, all_tensors, corner, gradients, scores
from fedmrl.errors import CODE_FAILS
from fedmrl.messages import Tensors, size
from fedmrl.methods import Batch, ClientNet
from fedmrl.models import ModelSpec
from fedmrl.training import Phase

# Attributes in which kinds of one stack may differ.
_MAY_DIFFER = {
    "training",
    "dim",
    "in_features",
    "out_features",
    "in_channels",
    "out_channels",
}
_SHIFTS = (0.0, -3.0, 3.0)  # shifts of all biases under which stack and net must agree
_COPIES = 5  # copies of the weights in memory: parameters, gradients, velocities, and other layouts or types


@dataclass(frozen=True)
class Loner:
    """A kind of local model that cannot be stacked, and why."""

    spec: ModelSpec
    reason: str


def families(setting: Setting) -> tuple[list[Family], list[Loner]]:
    """Groups the kinds of local model into families, and those that cannot be stacked into loners."""
    trial = _Trial(setting)
    found: list[Family] = []
    loners: list[Loner] = []
    for alike in trial.alike():
        faults = {spec: _layer_at_fault(trial.nets[spec]) for spec in alike}
        loners += [Loner(spec, fault) for spec, fault in faults.items() if fault]
        left = [spec for spec in alike if not faults[spec]]
        while left:
            first, reason = left[0], "its results in a stack differ from those alone"
            try:
                fitting = trial.fitting(left)
            except _ChangesError as error:
                fitting, reason = [], str(error)
            except CODE_FAILS:  # a user's module may raise anything under vmap
                fitting, reason = [], f"{trial.at} cannot be called for many clients at once"
            if fitting:
                found.append(trial.family(fitting))
            else:
                fitting = [first]
                loners.append(Loner(first, reason))
            left = [spec for spec in left if spec not in fitting]
    return found, loners


def _layer_at_fault(net: nn.Module) -> str | None:
    for name, module in net.named_modules():
        layer = _layer(name, module)
        if isinstance(module, _BatchNorm):
            return f"{layer} normalises over the batch"
        if (isinstance(module, _DropoutNd) and module.p > 0) or isinstance(module, nn.RReLU):
            return f"{layer} draws random numbers"
        if isinstance(module, nn.RNNBase):
            return f"{layer} cannot be called for many clients at once"
    if shared := [name for name in net.state_dict() if name not in all_tensors(net)]:
        owner = shared[0].rpartition(".")[0]
        return f"{_layer(owner, net.get_submodule(owner))} shares its tensors with another layer"
    return None


def _layer(name: str, module: nn.Module) -> str:
    known = _named(name)
    return f"its layer {known} ({type(module).__name__})" if known else f"its own code ({type(module).__name__})"


def _named(name: str) -> str:
    """The layer's name as the model's author knows it, without the client net's prefixes."""
    return name.removeprefix("local").removeprefix(".").removeprefix("extractor").removeprefix(".")


class _ChangesError(Exception):
    """A buffer changes during a call, which a stack does not support."""


class _Trial:
    """One step of each kind of local model in float64, alone and in a stack."""

    def __init__(self, setting: Setting) -> None:
        training = setting.training.model_copy(update={"precision": "fp64"})
        terms = replace(setting.terms, training=training)
        self.setting = replace(setting, device=torch.device("cpu"), terms=terms)
        self.target = setting
        self.client_of = setting.models
        self.nets = {spec: self._net(spec) for spec in self.client_of}
        rng = np.random.default_rng(0)
        # Small noise, large noise (for functions that are non-linear only far from zero), padding, and two real samples.
        shape, vocabulary = setting.data.shape, setting.data.vocabulary
        scale = np.array([1.0, 30.0, 1.0]).reshape(3, *[1] * len(shape))
        drawn = rng.normal(size=(3, *shape)) * scale if vocabulary is None else rng.integers(0, vocabulary, (3, *shape))
        noise = torch.from_numpy(drawn)
        real, _ = Samples(setting.data, torch.device("cpu"), torch.float64).take(np.array([0, len(setting.data.y) - 1]))
        self.x = torch.cat([noise, real])
        self.y_B = torch.from_numpy(rng.integers(0, len(setting.data.classes), 5))
        self.mask_B = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
        # The phases of a new client and of one that has taken part before.
        both = [phase for earlier in (0, 1) for phase in setting.method.phases(training, earlier)]
        self.phases = [phase for number, phase in enumerate(both) if phase not in both[:number]]
        self._sums: dict[ModelSpec, dict[str, torch.Size]] = {}
        """The shapes of a loss's sums, by kind of model."""
        self._saved: dict[ModelSpec, int] = {}
        """The most numbers that autograd saves for one sample."""
        self._inside: list[tuple[str, nn.Module]] = []
        """The stack of layers being called."""

    def _net(self, spec: ModelSpec) -> ClientNet:
        net = self.setting.fresh_net(self.client_of[spec])
        rng = torch.Generator().manual_seed(0)
        with torch.no_grad():  # initial weights may be special: a gate that starts closed hides the layers behind it
            for parameter in net.parameters():
                parameter.add_(torch.empty_like(parameter).uniform_(-0.2, 0.2, generator=rng))
        for buffer in net.buffers(recurse=False):
            # Received buffers are zero in a fresh net, which would hide how a loss depends on them. A model's own stay.
            if buffer.dtype == torch.bool:
                buffer.fill_(True)
            elif buffer.is_floating_point() and buffer.ndim:
                buffer.copy_(torch.rand(buffer.shape, generator=rng) + 0.5)
        return net

    def alike(self) -> list[list[ModelSpec]]:
        """Groups of kinds with equal layers (name, type, settings) and tensors of equal names, ranks and types."""
        groups: dict[Any, list[ModelSpec]] = {}
        for spec, net in self.nets.items():
            layers = tuple((name, type(module), _settings(module)) for name, module in net.named_modules())
            tensors = tuple((name, tensor.ndim, tensor.dtype) for name, tensor in all_tensors(net).items())
            groups.setdefault((layers, tensors), []).append(spec)
        return list(groups.values())

    def fitting(self, specs: Sequence[ModelSpec]) -> list[ModelSpec]:
        """The kinds, including the first, whose results in one stack match those alone."""
        try:
            fitting = self._agreeing(specs)
        except CODE_FAILS:
            if len(specs) == 1:
                raise
            fitting = []
        if specs[0] in fitting or len(specs) == 1:
            return fitting
        return self._agreeing(specs[:1])  # the first kind does not fit the others

    def _agreeing(self, specs: Sequence[ModelSpec]) -> list[ModelSpec]:
        """The kinds whose results in a stack, called through the first one's net, match those alone."""
        net, K, method = self._called(specs[0]), len(specs), self.setting.method
        self._inside = []
        for name, module in net.named_modules():
            module.register_forward_pre_hook(partial(self._enter, name))
            module.register_forward_hook(self._leave)
        stack = self._stack(specs)
        x = self.x.expand(K, *self.x.shape)
        agree = dict.fromkeys(specs, True)
        for phase in self.phases:
            net.learn(phase.lr)
            learned = {name: stack[name] for name, p in net.named_parameters() if p.requires_grad}
            fixed = {name: tensor for name, tensor in stack.items() if name not in learned}
            of_each, losses_K, sums = gradients(
                net, phase.loss, learned, fixed, x, self.y_B.expand(K, -1), self.mask_B.expand(K, -1)
            )
            for k, spec in enumerate(specs):
                together = {"loss": losses_K[k], **{f"{n} (sum)": s[k] for n, s in sums.items()}}
                agree[spec] &= _same(together | {n: g[k] for n, g in of_each.items()}, self._alone(spec, phase))
                agree[spec] &= self._within_bounds(spec, phase, stack)
        net.eval()
        for shift in _SHIFTS:
            with self._shifted(specs, shift):
                stack = self._stack(specs)
                for mode in method.modes:
                    scores_KBC = scores(net, method, stack, x, mode)
                    for k, spec in enumerate(specs):
                        agree[spec] &= _same({mode: scores_KBC[k]}, {mode: self._predicted(spec, mode)})
        return [spec for spec in specs if agree[spec]]

    def _enter(self, name: str, module: nn.Module, _: Any) -> None:
        self._inside.append((name, module))

    def _leave(self, *_: Any) -> None:
        self._inside.pop()

    @property
    def at(self) -> str:
        """The layer in which a call failed."""
        return _layer(*self._inside[-1]) if self._inside else "it"

    @contextmanager
    def _shifted(self, specs: Sequence[ModelSpec], shift: float) -> Iterator[None]:
        """A context in which all biases are shifted: if all real units are below zero, a padded unit would show."""
        biases = [p for spec in specs for p in self.nets[spec].parameters() if p.ndim == 1]
        before = [bias.detach().clone() for bias in biases]
        with torch.no_grad():
            for bias in biases:
                bias.add_(shift)
            try:
                yield
            finally:  # kinds that do not fit are tried again, from the same weights
                for bias, value in zip(biases, before, strict=True):
                    bias.copy_(value)

    def _predicted(self, spec: ModelSpec, mode: str) -> Tensor:
        """One client's predictions, computed alone."""
        net = self.nets[spec].eval()
        with torch.no_grad(), _unchanged(net, "is evaluated"):
            return self.setting.method.predict(net, self.x, mode)

    def _within_bounds(self, spec: ModelSpec, phase: Phase, stack: Tensors) -> bool:
        """Whether zero is within the bounds of every padded parameter."""
        shapes = {name: tensor.shape for name, tensor in all_tensors(self.nets[spec]).items()}
        padded = (bounds for name, bounds in phase.bounds.items() if stack[name].shape[1:] != shapes[name])
        return all(low <= 0 <= high for low, high in padded)

    def _alone(self, spec: ModelSpec, phase: Phase) -> Tensors:
        """One client's loss, sums and gradients, computed alone on the rows that are not padding; notes shapes and memory."""
        net = self.nets[spec]
        net.learn(phase.lr)
        parameters = {name: p for name, p in net.named_parameters() if p.requires_grad}
        rows = self.mask_B > 0
        weights, saved = {p.untyped_storage().data_ptr() for p in net.parameters()}, 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal saved
            saved += 0 if tensor.untyped_storage().data_ptr() in weights else tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor), _unchanged(net, "trains"):
            outcome = phase.loss(net, Batch(self.x[rows], self.y_B[rows]))
        value, sums = outcome if isinstance(outcome, tuple) else (outcome, {})
        self._sums.setdefault(spec, {}).update({name: tensor.shape for name, tensor in sums.items()})
        self._saved[spec] = max(self._saved.get(spec, 0), saved // int(rows.sum()))
        found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True, materialize_grads=True)
        of_each = dict(zip(parameters, found, strict=True))
        return {"loss": value.detach(), **{f"{n} (sum)": s for n, s in sums.items()}, **of_each}

    def _called(self, spec: ModelSpec) -> ClientNet:
        net = self.setting.fresh_net(self.client_of[spec])
        stackable_layers(net)
        return net

    def _shapes(self, specs: Sequence[ModelSpec]) -> dict[str, torch.Size]:
        nets = [all_tensors(self.nets[spec]) for spec in specs]
        widest = {name: zip(*(tensors[name].shape for tensors in nets), strict=True) for name in nets[0]}
        return {name: torch.Size(map(max, axes)) for name, axes in widest.items()}

    def _stack(self, specs: Sequence[ModelSpec]) -> Tensors:
        stack: dict[str, list[Tensor]] = {}
        for name, shape in self._shapes(specs).items():
            stack[name] = []
            for spec in specs:
                tensor = all_tensors(self.nets[spec])[name]
                wide = tensor.new_zeros(shape)
                wide[corner(tensor.shape)] = tensor
                stack[name].append(wide)
        return {name: torch.stack(tensors) for name, tensors in stack.items()}

    def family(self, specs: Sequence[ModelSpec]) -> Family:
        """The family of these kinds, on the run's device and in its precision."""
        net = self._called(specs[0]).to(device=self.target.device, dtype=self.target.dtype)
        shapes = self._shapes(specs)
        numbers = sum(shape.numel() for shape in shapes.values())
        bytes_of = torch.finfo(self.target.dtype).bits // 8
        widest = max(specs, key=lambda spec: size(all_tensors(self.nets[spec])).parameters)
        sums = {spec: self._sums[spec] for spec in specs}
        return Family(net, tuple(specs), shapes, sums, _COPIES * numbers * bytes_of, _COPIES * self._saved[widest] * bytes_of)


def _settings(module: nn.Module) -> tuple[tuple[str, Any], ...]:
    """A layer's plain attributes except its widths; layers that differ in one cannot share a net."""
    plain = ((name, value) for name, value in vars(module).items() if isinstance(value, bool | int | float | str | tuple))
    return tuple(sorted((name, repr(value)) for name, value in plain if name not in _MAY_DIFFER and not name.startswith("_")))


@contextmanager
def _unchanged(net: nn.Module, does: str) -> Iterator[None]:
    """A context that raises if a buffer changes: in a stack, clients would change each other's, or none."""
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    yield
    for name, buffer in net.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise _ChangesError(f"its {_named(name)} changes as it {does}")


def _same(together: Mapping[str, Tensor], alone: Mapping[str, Tensor]) -> bool:
    """Whether the results agree and padding stayed exactly zero; classes that cannot be predicted are -inf in both."""
    for name, tensor in together.items():
        inside = corner(alone[name].shape)
        outside = tensor.count_nonzero() - tensor[inside].count_nonzero()
        if outside or not torch.allclose(tensor[inside], alone[name], rtol=1e-9, atol=1e-11):
            return False
    return together.keys() == alone.keys()
