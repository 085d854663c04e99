"""Models that a stack could get wrong: they are stacked and right, run one by one with the reason said, or refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_recipe
from torch import nn

import fedmrl
from fedmrl import OwnModel, UserError
from fedmrl.engines.families import families
from fedmrl.federation.launch import run_seeds
from fedmrl.federation.setup import prepare, schedule
from fedmrl.federation.simulation import Simulation
from fedmrl.methods import Standalone
from fedmrl.models import Split

CPU = torch.device("cpu")


class Body(nn.Module):
    """A linear layer, something between, and a linear layer."""

    def __init__(self, width=6):
        super().__init__()
        self.body, self.last = nn.Linear(256, width), nn.Linear(width, 4)

    def between(self, h):
        return h

    def forward(self, x):
        return self.last(self.between(self.body(x.flatten(1))))


def clipped(kind):
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 6), kind(), nn.Linear(6, 4))


class Gated(Body):
    """A gate that starts closed, and behind it units that do not stay zero when they are padded."""

    def __init__(self, width):
        super().__init__()
        self.down, self.up, self.gate = nn.Linear(6, width), nn.Linear(width, 6), nn.Parameter(torch.zeros(()))

    def between(self, h):
        return h + self.gate * self.up(torch.sigmoid(self.down(h)))


class Counting(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def between(self, h):
        if self.training:
            self.seen += 1
        return h * (self.seen / 20).clamp(max=1)


class CountingAnew(Counting):
    def between(self, h):
        if self.training:
            self.seen = self.seen + 1
        return h * (self.seen / 20).clamp(max=1)


class Masking(Body):
    """Its mask is minus infinity, and kept or not."""

    persistent = False

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, -math.inf] * 3), persistent=self.persistent)

    def between(self, h):
        return (h + self.mask).softmax(dim=-1)


class MaskingKept(Masking):
    persistent = True


def ends(recipe, models):
    found = []
    for engine in ("reference", "batched"):
        federation = Simulation(recipe, prepare(recipe, CPU, models), engine)
        federation.run(lambda _: None)
        found.append(federation.states())
    return found


def assert_agree(recipe, models):
    reference, batched = ends(recipe, models)
    for client, state in reference.items():
        for name, tensor in state.items():
            assert torch.allclose(tensor.double(), batched[client][name].double(), rtol=1e-9, atol=1e-9), (client, name)


@pytest.mark.parametrize(
    ("builds", "last"),
    [
        ([clipped(nn.ReLU), clipped(nn.ReLU6)], "3"),
        ([lambda: Gated(4), lambda: Gated(7)], "last"),
        ([Counting], "last"),
        ([CountingAnew], "last"),
        ([Masking], "last"),
        ([MaskingKept], "last"),
    ],
)
def test_engines_agree(builds, last):
    kinds = [OwnModel(f"model-{number}", build, last) for number, build in enumerate(builds)]
    recipe = tiny_recipe("standalone", training__lr=0.1, rounds=3, participation=1.0)
    assert_agree(recipe, [kinds[client % len(kinds)] for client in range(4)])


def test_what_changes_a_buffer_runs_one_by_one_and_the_buffer_is_named():
    setting = prepare(tiny_recipe("standalone"), CPU, [OwnModel("counting", Counting, "last")] * 4)
    assert [loner.reason for loner in families(setting)[1]] == ["its seen changes as it trains"]


def test_a_client_depends_on_no_sample_but_its_own(tmp_path):
    """Sample 0 would give 0 / 0: whoever does not have it must not see it, not even as padding."""

    class Normalising(Body):
        def between(self, h):
            return h / h.square().sum(dim=-1, keepdim=True).sqrt()

        def forward(self, x):
            return self.last(self.between(nn.functional.linear(x.flatten(1), self.body.weight)))

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 1, 16, 16)).astype(np.float32), np.arange(60) % 4
    x[0] = 0
    np.savez(tmp_path / "own.npz", x=x, y=y)
    entries = [{"train": list(range(1 + 14 * k, 12 + 14 * k)), "test": [12 + 14 * k, 13 + 14 * k]} for k in range(4)]
    entries[3]["test"].append(0)
    (tmp_path / "split.json").write_text(str({"clients": entries}).replace("'", '"'))
    recipe = tiny_recipe(
        "standalone", data__file=str(tmp_path / "own.npz"), data__mean=[0.0], data__std=[1.0], partition__kind="given",
        partition__file=str(tmp_path / "split.json"), participation=1.0,
    )  # fmt: skip
    assert_agree(recipe, [OwnModel("normalising", Normalising, "last")] * 4)


def test_a_random_part_that_is_not_kept_is_refused():
    class Random(Body):
        def __init__(self):
            super().__init__()
            self.register_buffer("w", torch.randn(6), persistent=False)

    with pytest.raises(UserError, match=r"random: local\.extractor\.w is drawn at random and not kept in its state"):
        prepare(tiny_recipe("standalone"), CPU, [OwnModel("random", Random, "last")] * 4)


def test_a_model_that_cannot_be_trained_is_refused_before_anything_is_written(tmp_path):
    class Auxiliary(Body):
        def between(self, h):
            return (h, h) if self.training else h

    models = [OwnModel("auxiliary", Auxiliary, "last")] * 4
    with pytest.raises(UserError, match=r"client 0's model \(auxiliary\) cannot be trained \(TypeError: "):
        fedmrl.run(tiny_recipe("standalone"), models=models, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_many_kinds_that_cannot_be_stacked_are_told_once():
    def kind():
        """A function of its own, and so a kind of its own."""
        return lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    models = [OwnModel("norm", kind(), "4") for _ in range(4)]
    lines = []
    fedmrl.run(tiny_recipe("standalone", training__batch_size=6), models=models, engine="batched", on_notice=lines.append)
    assert sum("normalises over the batch" in line for line in lines) == 1


def test_a_resumed_run_of_stacks_ends_where_an_uninterrupted_one_ends(tmp_path):
    """In 32 bits: the first round has more clients than the others, and so has the stack for all of them."""
    (tmp_path / "who.json").write_text(str([[0, 1], *[[0]] * 5]))
    recipe = tiny_recipe("standalone", rounds=6, participation=str(tmp_path / "who.json"), training__precision="fp32")
    whole = fedmrl.run(recipe, engine="batched", out=tmp_path / "whole")

    def stop(record):
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(fedmrl.InterruptedRun):
        fedmrl.run(recipe, engine="batched", out=tmp_path / "parts", on_round=stop)
    parts = fedmrl.run(recipe, engine="batched", out=tmp_path / "parts", resume=True)
    assert [r.loss for r in parts.records] == [r.loss for r in whole.records]


@pytest.mark.parametrize("method", ["fd", "fedproto"])
def test_sums_are_exact_in_a_coarse_precision(method):
    sent = []
    for engine in ("reference", "batched"):
        recipe = tiny_recipe(method, training__precision="bf16", training__epochs=300, rounds=1, participation=0.25)
        setting = prepare(recipe, CPU)
        federation = Simulation(recipe, setting, engine)
        federation.run(lambda _: None)
        server, (client,) = federation.now.server, schedule(recipe)[0]
        # FD counts clients, FedProto the samples of the last epoch.
        expected = (
            len(set(setting.data.y[setting.members[client].train])) if method == "fd" else len(setting.members[client].train)
        )
        assert server["weight"].sum() == expected
        sent.append({name: tensor.dtype for name, tensor in server.items()})
    assert sent[0] == sent[1]


def test_a_resume_that_is_refused_leaves_no_new_folder(tmp_path):
    recipe = tiny_recipe("standalone")
    run_seeds(recipe, [0], outs=[tmp_path / "seed-0"])
    other = tiny_recipe("standalone", training__lr=0.5)
    with pytest.raises(UserError, match="was started with another recipe"):
        run_seeds(other, [5, 0], outs=[tmp_path / "seed-5", tmp_path / "seed-0"], resume=True)
    assert not (tmp_path / "seed-5").exists()


@pytest.mark.parametrize(("bounds", "stacks"), [((-0.5, 0.5), 1), ((0.2, 0.6), 2)])
def test_what_may_not_be_zero_is_not_padded(bounds, stacks):
    class Bounded(Standalone):
        def phases(self, training, earlier):
            return (replace(training.phase(self.loss, self.parts), bounds={"local.header.bias": bounds}),)

    class Header(nn.Module):
        """Its bias is as long as its representation."""

        def __init__(self, width):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(4, width)), nn.Parameter(torch.full((width,), 0.4))

        def forward(self, rep_BD):
            return (rep_BD + self.bias) @ self.weight.T

    class Kind:
        def __init__(self, width):
            self.label, self.width = f"width-{width}", width

        def build(self, shape, classes):
            body = nn.Sequential(nn.Flatten(), nn.Linear(256, self.width), nn.ReLU())
            return Split(body, Header(self.width), self.width)

    setting = prepare(tiny_recipe("standalone"), CPU, [Kind(3), Kind(5)] * 2)
    found, loners = families(replace(setting, terms=replace(setting.terms, method=Bounded())))
    assert len(found) == stacks
    assert not loners


def limited(highest):
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 6), nn.Hardtanh(0, highest), nn.Linear(6, 4))


class Largest(Body):
    """Beside its units it looks at the largest of them, which padding would be if all are below zero."""

    def between(self, h):
        h = torch.tanh(h)
        return h + h.amax(dim=1, keepdim=True)


class CountingTests(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def between(self, h):
        if not self.training:
            self.seen += 1
        return h


@pytest.mark.parametrize(
    "kinds",
    [
        [OwnModel("low", limited(150.0), "3"), OwnModel("high", limited(5000.0), "3")],
        [OwnModel("narrow", lambda: Largest(6), "last"), OwnModel("wide", lambda: Largest(12), "last")],
        [OwnModel("counting", CountingTests, "last")] * 2,
    ],
    ids=["limits", "the largest", "counts tests"],
)
def test_what_a_stack_would_hide_is_found(kinds, tmp_path):
    recipe = tiny_recipe("standalone", data__mean=[0.0], data__std=[1.0], training__lr=1e-6)
    runs = [
        fedmrl.run(recipe, models=kinds * 2, engine=engine, out=tmp_path / engine, store="device")
        for engine in ("reference", "batched")
    ]
    one, two = ([(r.loss, r.accuracy) for r in run.records] for run in runs)
    assert [loss for loss, _ in two] == pytest.approx([loss for loss, _ in one], rel=1e-9)
    assert [accuracy for _, accuracy in two] == [accuracy for _, accuracy in one]
    for path in (tmp_path / "reference" / "checkpoint").glob("client-*.safetensors"):
        states = [load_file(tmp_path / engine / "checkpoint" / path.name) for engine in ("reference", "batched")]
        assert all(torch.allclose(states[0][name], states[1][name], rtol=1e-9, atol=1e-12) for name in states[0])


class Plain(nn.Module):
    """Written for images that are laid out as usual, with a layer of another number of axes."""

    def __init__(self):
        super().__init__()
        self.conv, self.deep = nn.Conv2d(1, 2, 3), nn.Conv3d(1, 1, 1)
        self.last = nn.Linear(2 * 14 * 14, 4)

    def forward(self, x):
        h = self.deep(self.conv(x)[:, None])[:, 0]
        return self.last(h.view(len(h), -1))


@pytest.mark.parametrize("engine", ["reference", "batched"])
def test_a_users_model_gets_images_as_they_are_usually_laid_out(engine):
    fedmrl.run(tiny_recipe("standalone"), models=[OwnModel("plain", Plain, "last")] * 4, engine=engine)


def test_a_model_that_is_frozen_is_refused():
    frozen = lambda: Body().requires_grad_(False)  # noqa: E731
    with pytest.raises(UserError, match="frozen has nothing that can be trained"):
        prepare(tiny_recipe("standalone"), CPU, [OwnModel("frozen", frozen, "last")] * 4)


def test_a_parameter_without_numbers_is_stacked():
    class Empty(Body):
        def __init__(self):
            super().__init__()
            self.nothing = nn.Parameter(torch.empty(0))

    fedmrl.run(tiny_recipe("standalone"), models=[OwnModel("empty", Empty, "last")] * 4, engine="batched")


@pytest.mark.parametrize(("method", "batch", "refused"), [("standalone", 1, True), ("fedapen", 64, False)])
def test_layers_that_normalise_over_the_batch_need_two_samples_where_they_train(method, batch, refused):
    def norm():
        return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    recipe = tiny_recipe(method, training__batch_size=batch, **({"method__adaptability": 0.05} if method == "fedapen" else {}))
    models = [OwnModel("norm", norm, "4")] * 4
    if refused:
        with pytest.raises(UserError, match="normalises over the batch"):
            prepare(recipe, CPU, models)
    else:
        prepare(recipe, CPU, models)


class Sorting(Body):
    """It looks at what its numbers are, which cannot be done for many clients at once."""

    def between(self, h):
        return h if float(h.detach().max()) > 0 else -h


class Nested(Body):
    def __init__(self):
        super().__init__()
        self.inner = Sorting()
        self.inner.forward = self.inner.between

    def between(self, h):
        return self.inner(h)


@pytest.mark.parametrize(("kind", "who"), [(Sorting, "its own code (Sorting)"), (Nested, "its layer inner (Sorting)")])
def test_a_model_that_is_run_alone_is_told_by_the_layer_and_not_by_what_torch_says(kind, who):
    lines, recipe = [], tiny_recipe("standalone", rounds=1)
    fedmrl.run(recipe, models=[OwnModel("odd", kind, "last")] * recipe.clients, engine="batched", on_notice=lines.append)
    slower = "odd is run one client at a time, which is slower and gives the same numbers"
    assert lines[0] == f"{slower}: {who} cannot be called for many clients at once"


class Compiled(Body):
    def __init__(self):
        super().__init__()
        self.inner = torch.jit.trace(nn.Linear(6, 6), torch.zeros(2, 6))

    def between(self, h):
        return self.inner(h)


class NotOne(Body):
    def between(self, h):
        if len(h) == 1:
            raise RuntimeError("one is too few\nand more")
        return h


class Picky(Body):
    def between(self, h):
        if len(h) > 2:
            raise RuntimeError("more than two\nand more")
        return h


def cannot_be_made():
    raise RuntimeError("no such weights\nand more")


@pytest.mark.parametrize("engine", ["reference", "batched"])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Compiled, "model 'odd': Compiled cannot be split: its layer 'inner' is compiled by torch.jit"),
        (NotOne, r"model \(odd\) cannot be trained on a single sample.*choose another \(RuntimeError: one is too few\)$"),
        (Picky, r"client \d, in round 1: odd fails as it trains: RuntimeError: more than two; fix the model$"),
        (cannot_be_made, r"model 'odd' cannot be made \(RuntimeError: no such weights\)$"),
        (lambda: 3, "model 'odd': make returns an int; it must return an nn.Module"),
    ],
    ids=["compiled", "not-one", "picky", "unmade", "no-module"],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_model_that_fails_is_told_in_a_sentence_with_the_first_line_of_the_cause(make, says, engine):
    recipe = tiny_recipe("standalone", rounds=1, training__batch_size=7)
    with pytest.raises(UserError, match=says):
        fedmrl.run(recipe, models=[OwnModel("odd", make, "last")] * recipe.clients, engine=engine)
