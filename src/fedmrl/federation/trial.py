"""A trial of users' methods and aggregation rules on a few samples, before anything is written.

Legend of shapes: B batch, C classes.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedmrl.data.plan import shown
from fedmrl.engines import Setting
from fedmrl.engines.base import numerics
from fedmrl.engines.reference import optimiser_of, take_step
from fedmrl.errors import CODE_FAILS, UserCodeError, UserError
from fedmrl.guard import called, described, failure, is_ours
from fedmrl.messages import Tensors, Upload, check_form
from fedmrl.methods import Batch, ClientNet, Round
from fedmrl.methods.base import declares_messages
from fedmrl.methods.checks import loss as loss_problem
from fedmrl.randomness import torch_seeded
from fedmrl.training import Phase, Sums

_SAMPLES = 2  # at least, as batch normalisation needs two
_KINDS = 2  # kinds of model that are tried, so that uploads of different models meet


def needs_trial(setting: Setting) -> bool:
    """Whether the method or the aggregation rule is the user's own code."""
    return not (is_ours(type(setting.method)) and is_ours(type(setting.terms.aggregation)))


def try_out(setting: Setting, clients_a_round: int) -> None:
    """Raises `UserError` if the method or its aggregation rule fails in one small round; changes no random state."""
    with _same_random_state(setting.seed), numerics(setting.training.precision, setting.device):
        _Trial(setting, clients_a_round).run()


@contextmanager
def _same_random_state(seed: int) -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch_seeded(seed, "trial"):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@dataclass
class _Trial:
    """One round of one client of each kind of model."""

    setting: Setting
    clients_a_round: int
    """The number of uploads, as a rule may need more than there are kinds of model."""
    doing: str = "build"
    """The function that is being called, for exceptions in what follows from its result."""
    trained: bool = False
    """Whether a step was taken, after which a large learning rate may have made NaN."""
    not_finite: list[str] = field(default_factory=list)
    """What was NaN, in the order of the calls."""

    def run(self) -> None:
        """Starts, trains, uploads, aggregates, and predicts."""
        method = self.setting.method
        try:
            self._round()
        except CODE_FAILS as error:
            if is_ours(type(method)) or isinstance(error, UserError | MemoryError | torch.OutOfMemoryError):
                raise
            raise failure(method, "method", self.doing, error) from error

    def _round(self) -> None:
        setting, method, round_ = self.setting, self.setting.method, Round(0, self.setting.terms.rounds)
        clients = list(setting.models.values())[:_KINDS]
        self.doing = "start"
        server = self._noted("start", setting.server_start())
        nets = {client: self._received(client, setting.fresh_net(client), server, None) for client in clients}
        first, net = next(iter(nets.items()))
        self._predicts(first, net)
        uploads = [self._upload(client, of_client, round_) for client, of_client in nets.items()]
        if not all(parameter.isfinite().all() for of_client in nets.values() for parameter in of_client.parameters()):
            return  # the learning rate is too large, which the run tells
        self.doing = "encode"
        contents = method.encode(uploads, round_)
        for content in contents:
            self._noted("encode", content)
            self._has_form("upload", content)
        self.doing = "aggregate"
        sent = [
            Upload(client, len(setting.members[client].train), {name: tensor.contiguous() for name, tensor in content.items()})
            for client, content in zip(clients, contents, strict=True)
        ]
        rule = setting.terms.aggregation
        others = [client for client in setting.members if client not in clients]
        sent += [
            replace(one, client=other) for one, other in zip(cycle(sent), others[: max(0, self.clients_a_round - len(sent))])
        ]
        server = self._noted("aggregate", method.aggregate(server, sent, round_, rule))
        if self.not_finite == ["aggregate"] and not is_ours(type(rule)):
            raise UserCodeError(f"{called(rule, 'aggregation rule')}: combine returns NaN for uploads that are finite; mend it")
        self._received(first, net, server, 0)
        self._predicts(first, net)
        self._trains(first, net, earlier=1)

    def _received(self, client: int, net: ClientNet, server: Mapping[str, Tensor], since: int | None) -> ClientNet:
        method = self.setting.method
        self.doing = "build"
        if absent := [part for part in method.parts if part not in dict(net.named_children())]:
            self._fail(f"build returns a net without {absent[0]!r}, which parts names; it has {_names(net)}")
        before = {name: (tensor.shape, tensor.dtype) for name, tensor in net.state_dict().items()}
        self.doing = "answer"
        content = self._noted("answer", method.answer(dict(server), client, since))
        self._has_form("answer", content)
        self.doing = "receive"
        try:
            method.receive(net, content)
        except UserCodeError as error:
            before_it = "start" if since is None else "upload and aggregate"
            said = str(error).removesuffix("; mend it")
            raise UserCodeError(f"{said} with what answer returns after {before_it} ({_listed(content)}); mend it") from error
        if {name: (tensor.shape, tensor.dtype) for name, tensor in net.state_dict().items()} != before:
            self._fail("receive changes the names, shapes or types of the net's tensors; copy into them instead")
        return net

    def _has_form(self, message: Literal["upload", "answer"], content: Tensors) -> None:
        """Fails if a message is not as the method declares it; one that declares none is taken as it comes."""
        setting, method = self.setting, self.setting.method
        if not declares_messages(method):
            return
        self.doing = f"{message}_form"
        form = method.upload_form if message == "upload" else method.answer_form
        try:
            check_form(content, form(setting.terms.common, setting.server_start(), setting.dtype))
        except UserCodeError:
            raise
        except UserError as error:
            self._fail(f"{message}_form does not declare what the method sends: {error}")

    def _upload(self, client: int, net: ClientNet, round_: Round) -> Tensors:
        method, sums = self.setting.method, self._trains(client, net, earlier=0)
        self.doing = "upload"
        upload = self._noted("upload", method.upload(net, sums, round_))
        if method.averages and not upload:
            self._fail("upload returns an empty dict, and the method averages what clients send")
        own = {tensor.untyped_storage().data_ptr() for tensor in net.state_dict().values() if tensor.numel()}
        for name, tensor in upload.items():
            if tensor.numel() and tensor.untyped_storage().data_ptr() in own:
                self._fail(
                    f"upload returns {name} as a part of the net, which the next client changes; return a copy, as "
                    "fedmrl.messages.copy makes"
                )
        return upload

    def _trains(self, client: int, net: ClientNet, earlier: int) -> Sums:
        setting, sums = self.setting, Sums()
        self.doing = "subsets"
        cuts = setting.subsets(client)
        self.doing = "phases"
        for phase in setting.method.phases(setting.training, earlier):
            self.doing = "phases"
            self._check_phase(phase, net, cuts)
            x, y_B = self._samples(cuts[phase.subset])
            optimiser = optimiser_of(net, phase)
            self.doing = "loss"
            outcome = phase.loss(net, Batch(x, y_B))
            if problem := loss_problem(outcome):
                self._fail(f"loss {problem}")
            loss, added = outcome if isinstance(outcome, tuple) else (outcome, {})
            if not loss.requires_grad:
                self._fail(f"loss depends on nothing that can learn in a phase of {', '.join(phase.lr)}")
            if not torch.isfinite(loss) and (self.not_finite or not earlier):
                self._fail(f"loss is {loss.item()}{self._after}")
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            take_step(net, optimiser, phase)
            self.trained = True
            sums = {name: value.to(torch.promote_types(value.dtype, torch.float32)) for name, value in added.items()}
        return sums

    def _check_phase(self, phase: Phase, net: ClientNet, cuts: Mapping[str, np.ndarray]) -> None:
        if phase.subset not in cuts:
            self._fail(f"phases names the subset {phase.subset!r}, and subsets returns {', '.join(cuts) or 'none'}")
        if not len(cuts[phase.subset]):
            self._fail(f"subsets returns no positions as {phase.subset!r}, on which a phase trains")
        if absent := [part for part in phase.lr if part not in dict(net.named_children())]:
            self._fail(f"phases has a learning rate for {absent[0]!r}, and the net has {_names(net)}")
        if absent := [name for name in phase.bounds if name not in dict(net.named_parameters())]:
            self._fail(f"phases has bounds for {absent[0]!r}, which is no parameter of the net")

    @torch.no_grad()
    def _predicts(self, client: int, net: ClientNet) -> None:
        setting, net = self.setting, net.eval()
        x, _ = self._samples(setting.members[client].test)
        self.doing = "predict"
        for mode in setting.method.modes:
            score_BC = setting.method.predict(net, x, mode)
            wanted = (len(x), setting.terms.common.classes)
            if not isinstance(score_BC, Tensor) or tuple(score_BC.shape) != wanted:
                self._fail(f"predict returns {described(score_BC)} in mode {mode!r}; it must have shape {list(wanted)}")
            if score_BC.isnan().any() and (self.not_finite or not self.trained):
                self._fail(f"predict returns NaN in mode {mode!r}{self._after}")

    def _samples(self, positions: np.ndarray) -> tuple[Tensor, Tensor]:
        """A sample of each class, standardised, with their labels."""
        setting, data = self.setting, self.setting.data
        _, of_each_class = np.unique(data.y[positions], return_index=True)
        few = positions[np.resize(of_each_class, max(_SAMPLES, len(of_each_class)))]
        x = torch.from_numpy(np.ascontiguousarray(data.x[few]))
        if data.vocabulary is None:
            shape = (-1, *[1] * (data.x.ndim - 2))
            x = shown(x, *(torch.tensor(moment, dtype=setting.dtype).reshape(shape) for moment in (data.mean, data.std)))
        return x.to(setting.device), torch.from_numpy(data.y[few]).to(setting.device)

    def _noted(self, name: str, content: Tensors) -> Tensors:
        """The content; notes whether it has NaN."""
        if any(tensor.is_floating_point() and tensor.isnan().any() for tensor in content.values()):
            self.not_finite.append(name)
        return content

    @property
    def _after(self) -> str:
        return f", since {self.not_finite[0]} returns NaN" if self.not_finite else ""

    def _fail(self, problem: str) -> None:
        method = self.setting.method
        if not is_ours(type(method)):
            raise UserCodeError(f"{called(method, 'method')}: {problem}; mend it")


def _names(net: ClientNet) -> str:
    return _listed(dict(net.named_children()))


def _listed(names: Iterable[str]) -> str:
    first, *others = [*names] or ["nothing"]
    return f"{first} and {len(others)} more" if len(others) > 2 else ", ".join([first, *others])
