"""Users' methods that fail or return something wrong: a sentence before anything is written, or later with rounds kept."""

import random
import sys
from itertools import product

import numpy as np
import pytest
import torch
from tiny import ALL_METHODS, tiny_recipe
from torch import nn

import fedmrl
from fedmrl import UserError
from fedmrl.federation.setup import prepare
from fedmrl.federation.trial import try_out
from fedmrl.files import write_whole
from fedmrl.methods.base import ClientNet
from fedmrl.results import RunResult
from fedmrl.training import Phase

FUNCTIONS = [
    "build", "loss", "upload", "receive", "predict", "modes", "phases", "subsets", "start", "new_shared", "encode", "answer",
    "aggregate", "check",
]  # fmt: skip
CPU = torch.device("cpu")


class Shares(fedmrl.WeightSharing):
    """The local header is averaged."""

    name = "mine"
    shares = ("local.header",)

    def loss(self, net, batch):
        return batch.mean(nn.functional.cross_entropy(net.local(batch.x), batch.y_B, reduction="none"))

    def new_shared(self, common):
        return {"local.header": nn.Linear(common.header.dim, common.classes)}

    def encode(self, uploads, round_):
        return list(uploads)


def exits(*_):
    sys.exit(0)


def raises(*_):
    raise ValueError("out of luck\nreally")


def a_key(*_):
    return {}["absent"]


OUTCOMES = {
    "raises": raises,
    "exits": exits,
    "a key": a_key,
    "None": lambda *_: None,
    "a str": lambda *_: "rubbish",
    "a number": lambda *_: 3,
    "an empty dict": lambda *_: {},
    "a dict": lambda *_: {"x": "y"},
    "a tensor": lambda *_: torch.ones(3, 3),
    "a number without a graph": lambda *_: torch.tensor(1.0),
    "tensors": lambda *_: {"x": torch.ones(2)},
    "NaN": lambda *_: torch.tensor(float("nan"), requires_grad=True),
    "a list": lambda *_: [None],
    "sparse": lambda *_: {"local.header.weight": torch.eye(3).to_sparse()},
}
HARMLESS = {
    *((function, "an empty dict") for function in ("start", "new_shared", "answer", "aggregate")),
    *(("receive", what) for what in OUTCOMES if what not in ("raises", "exits", "a key")),
    *(("check", what) for what in OUTCOMES if what not in ("raises", "exits", "a key")),
}


def broken(function, outcome):
    behaviour = property(OUTCOMES[outcome]) if function == "modes" else OUTCOMES[outcome]
    return type("Broken", (Shares,), {"name": "broken", "__module__": __name__, function: behaviour})


@pytest.mark.parametrize(("function", "outcome"), [pair for pair in product(FUNCTIONS, OUTCOMES) if pair not in HARMLESS])
def test_a_method_that_fails_is_one_sentence_that_names_it_and_nothing_is_written(tmp_path, function, outcome):
    with pytest.raises(UserError, match="broken") as refusal:
        fedmrl.run(tiny_recipe("standalone", rounds=1), method=broken(function, outcome)(), out=tmp_path / "run")
    assert function in str(refusal.value) and len(str(refusal.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("function", "outcome"), sorted(HARMLESS))
def test_a_result_that_nothing_depends_on_may_be_anything(function, outcome):
    assert fedmrl.run(tiny_recipe("standalone", rounds=1), method=broken(function, outcome)()).status == "finished"


@pytest.mark.parametrize("name", ALL_METHODS)
def test_every_method_of_fedmrls_passes_the_trial(name):
    recipe = tiny_recipe(name, models__local="homogeneous") if name == "lg-fedavg" else tiny_recipe(name)
    try_out(prepare(recipe, CPU), clients_a_round=4)


def test_a_trial_moves_no_random_state_and_no_number():
    class Draws(Shares):
        name = "draws"

        def loss(self, net, batch):
            random.random(), np.random.random(), torch.rand(1)
            return super().loss(net, batch)

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    setting = prepare(tiny_recipe("standalone"), CPU)
    expected = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    terms = setting.terms.__class__(**{**vars(setting.terms), "method": Draws()})
    try_out(setting.__class__(**{**vars(setting), "terms": terms}), clients_a_round=2)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == expected


class Tries:
    """Overrides of single functions, each with what the sentence says."""

    def no_part(self, local, task):
        return ClientNet({"other": local})

    def alias(self, net, sums, round_):
        return self.shared(net)

    def a_graph(self, net, sums, round_):
        return {name: tensor * net.local.header.weight.sum() for name, tensor in self.shared(net).items()}

    def unknown_subset(self, training, earlier):
        return (Phase(self.loss, {"local": 0.1}, epochs=1, subset="nowhere"),)

    def unknown_part(self, training, earlier):
        return (Phase(self.loss, {"nowhere": 0.1}, epochs=1),)

    def unknown_bound(self, training, earlier):
        return (Phase(self.loss, {"local": 0.1}, epochs=1, bounds={"nowhere": (0, 1)}),)

    def half_an_epoch(self, training, earlier):
        return (Phase(self.loss, {"local": 0.1}, epochs=0.5),)

    def a_rate_of_text(self, training, earlier):
        return (Phase(self.loss, {"local": "fast"}, epochs=1),)

    def losses_of_text(self, training, earlier):
        return (Phase(lambda net, batch: "low", {"local": 0.1}, epochs=1),)

    def out_of_range(self, samples, rng):
        return {"train": np.arange(samples) + 1}

    def empty(self, samples, rng):
        return {"train": np.arange(0)}

    def fractions(self, samples, rng):
        return {"train": np.linspace(0, 1, samples)}

    def per_sample(self, net, batch):
        return nn.functional.cross_entropy(net.local(batch.x), batch.y_B, reduction="none")

    def nan_scores(self, net, x, mode):
        return net.local(x) * float("nan")

    def too_few_classes(self, net, x, mode):
        return net.local(x)[:, :2]

    def labels(self, net, x, mode):
        return net.local(x).argmax(dim=1)

    def nan_upload(self, net, sums, round_):
        return {name: tensor * float("nan") for name, tensor in self.shared(net).items()}

    def other_shapes(self, server, uploads, round_, rule=None):
        return {name: tensor[:1] for name, tensor in server.items()}

    def one_upload(self, uploads, round_):
        return list(uploads)[:1]


SAYS = {
    "no_part": ("build", "build returns a net without 'local', which parts names; it has other"),
    "alias": ("upload", r"upload returns local.header.weight as a part of the net, .*return a copy"),
    "a_graph": ("upload", "upload returns a tensor that requires gradients under 'local.header.weight'"),
    "unknown_subset": ("phases", "phases names the subset 'nowhere', and subsets returns train"),
    "unknown_part": ("phases", "phases has a learning rate for 'nowhere', and the net has local"),
    "unknown_bound": ("phases", "phases has bounds for 'nowhere', which is no parameter of the net"),
    "half_an_epoch": ("phases", "phases returns a phase whose epochs is 0.5; it must be a whole number"),
    "a_rate_of_text": ("phases", "phases returns a phase whose lr of 'local' is 'fast'; it must be a number"),
    "losses_of_text": ("phases", "loss returns a str; it must return a scalar tensor"),
    "out_of_range": ("subsets", r"subsets returns positions outside 0 to \d+ as 'train'"),
    "empty": ("subsets", "subsets returns no positions as 'train', on which a phase trains"),
    "fractions": ("subsets", "subsets returns a ndarray as 'train'; it must be a NumPy array of whole numbers"),
    "per_sample": ("loss", "loss returns a tensor of shape .*; it must return a scalar of real numbers"),
    "nan_scores": ("predict", "predict returns NaN in mode 'local'; mend it"),
    "too_few_classes": ("predict", r"predict returns a tensor of shape .*, 2\] in mode 'local'; it must have shape .*, 4\]"),
    "labels": ("predict", "predict returns a tensor of shape .*; it must return a tensor of samples × classes"),
    "nan_upload": ("upload", "predict returns NaN in mode 'local', since upload returns NaN"),
    "other_shapes": ("aggregate", "receive fails .* with what answer returns after upload and aggregate"),
    "one_upload": ("encode", "encode returns 1 uploads for 2; it must return a list with one for each"),
}  # fmt: skip


@pytest.mark.parametrize("engine", ["reference", "batched"])
@pytest.mark.parametrize("case", SAYS)
def test_what_a_method_does_wrong_is_named(tmp_path, case, engine):
    function, says = SAYS[case]
    kind = type("Broken", (Shares,), {"name": "broken", "__module__": __name__, function: getattr(Tries, case)})
    with pytest.raises(UserError, match=f"^method 'broken': {says}"):
        fedmrl.run(tiny_recipe("standalone", rounds=1), method=kind(), engine=engine, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_line_of_the_users_file_is_named(tmp_path):
    line = a_key.__code__.co_firstlineno + 1
    with pytest.raises(UserError, match=rf"^method 'broken': loss fails \(KeyError: 'absent', line {line}\); mend it$"):
        fedmrl.run(tiny_recipe("standalone"), method=broken("loss", "a key")(), out=tmp_path / "run")


def test_a_bug_of_fedmrls_own_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(fedmrl.Standalone, "loss", a_key)
    with pytest.raises(KeyError):
        fedmrl.run(tiny_recipe("standalone"))


def test_a_learning_rate_that_is_too_large_is_still_a_divergence():
    class Fine(fedmrl.Standalone):
        name = "fine"

    with pytest.raises(fedmrl.DivergedError):
        fedmrl.run(tiny_recipe("standalone", training__lr=1e300), method=Fine())


LATER = """
import fedmrl

@fedmrl.register
class Later(fedmrl.Standalone):
    name = "later"

    def phases(self, training, earlier):
        if earlier > {last}:
            raise RuntimeError("enough")
        return super().phases(training, earlier)
"""
RUN = ["--set", "rounds=4", "--set", "evaluation.every=1", "--set", "models.local=[{hidden=[4]}]", "--set", "method.name=later"]


def test_a_failure_in_a_later_round_keeps_the_last_round_and_the_run_goes_on_when_it_is_mended(fedmrl, tmp_path, monkeypatch):
    file = tmp_path / "later.py"
    recipe = ["run", "quickstart", "--import", file, "--set", "clients=4", "--set", "participation=1", *RUN]
    file.write_text(LATER.format(last=99))
    assert fedmrl(*recipe, "--out", "whole")[0] == 0
    file.write_text(LATER.format(last=1))
    code, _, err = fedmrl(*recipe, "--out", "cut")
    assert code == 2 and "Traceback" not in err
    assert err.splitlines()[-1] == (
        "fedmrl: method 'later': phases fails (RuntimeError: enough, line 10); mend it; then resume cut after round 2 of 4"
    )
    assert len((tmp_path / "cut" / "rounds.jsonl").read_text().splitlines()) == 2
    assert fedmrl("run", "cut", "--resume")[0] == 2, "it fails again while it is not mended"
    file.write_text(LATER.format(last=99))
    assert fedmrl("run", "cut", "--resume")[0] == 0
    cut, whole = (RunResult.read(name) for name in ("cut", "whole"))
    assert cut.states_sha256 == whole.states_sha256 and len(cut.records) == 4


def test_a_kill_while_a_failure_is_written_down_leaves_a_run_that_resumes(fedmrl, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(path, text):
        write_whole(path, text)
        if path.name == "code-failed" or (path.name, "imports" in text) == ("inputs.json", False):
            raise Killed

    file = tmp_path / "later.py"
    file.write_text(LATER.format(last=1))
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr("fedmrl.federation.folder.write_whole", killed)
        whole = ["--set", "clients=4", "--set", "participation=1", *RUN]
        fedmrl("run", "quickstart", "--import", file, *whole, "--out", "cut")
    file.write_text(LATER.format(last=99))
    code, _, err = fedmrl("run", "cut", "--resume")
    assert code == 0, err


def test_a_run_that_did_not_fail_still_takes_no_changed_file(fedmrl, tmp_path):
    file = tmp_path / "later.py"
    file.write_text(LATER.format(last=99))
    recipe = ["run", "quickstart", "--import", file, "--set", "clients=4", *RUN]
    assert fedmrl(*recipe, "--out", "one")[0] == 0
    (tmp_path / "one" / "summary.json").unlink()
    file.write_text(LATER.format(last=98))
    code, _, err = fedmrl("run", "one", "--resume")
    assert code == 2 and "the file that imports[0] names has changed" in err
