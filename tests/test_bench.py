"""Speed is measured with the error beside it, and what cannot be measured here is said."""

import pytest
import torch
from tiny import CNNS, tiny_recipe

from fedmrl.bench import BENCH_COLUMNS, measure
from fedmrl.errors import UserError
from fedmrl.federation.setup import prepare, schedule


@pytest.mark.parametrize("method", ["fedmrl", "fedapen", "fedkd"])
def test_every_way_is_measured_and_compared_with_the_reference(method):
    heard = []
    result = measure(tiny_recipe(method), "tiny", repeats=1, fused=2, on_row=heard.append)
    assert [(row["way"], row["precision"], row["seeds"]) for row in result["rows"]] == [
        ("reference", "fp64", 1),
        ("eager", "fp64", 1),
        ("eager", "fp64", 2),
    ]
    assert result["clients"] == 2
    assert result["rows"][0]["error"] == 0
    for row in result["rows"]:
        assert row["error"] < 1e-9
        assert row["samples_per_second"] > 0
        assert row["seconds_a_round"] == sum(row["seconds"][what] for what in ("train", "aggregate", "evaluate"))
        assert len(row["shown"]) == len(BENCH_COLUMNS)
    assert {"train", "encode", "evaluate", "aggregate", "gather", "step"} <= result["rows"][1]["seconds"].keys()
    assert len(heard) == 6, "a line before each, and one after it"


def test_noise_stands_in_for_data_that_is_not_there():
    recipe = tiny_recipe("standalone", clients=600, participation=0.005, data__name="cifar10")
    result = measure(recipe, "tiny", repeats=1, fused=1, ways=["eager"], precisions=["bf16"], on_noise=True)
    assert result["noise"] is True
    assert 0 < result["rows"][0]["error"] < 0.1  # coarser than 32 bits, and close


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"ways": ["compiled"]}, "ways: captured and compiled need a GPU, and this is a CPU; choose reference or eager"),
        ({"ways": ["fast"]}, "ways is fast; choose from reference, eager, captured, compiled"),
        ({"precisions": ["fp8"]}, "precisions is fp8; choose from fp32, tf32, bf16, fp64"),
    ],
)
def test_what_there_is_not_is_refused(asked, sentence):
    with pytest.raises(UserError, match=sentence):
        measure(tiny_recipe(), "tiny", device="cpu", **asked)


def test_the_rate_of_steps_counts_all_clients_and_no_padding():
    """Two structures are two programs, and the clients' samples do not fill their batches."""
    recipe = tiny_recipe("standalone", participation=1.0, models__local=[{"hidden": [8, 6]}, CNNS[0]])
    result = measure(recipe, "tiny", repeats=1, fused=1, ways=["eager"])
    (row,) = result["rows"]
    splits = prepare(recipe, torch.device("cpu")).members.values()
    samples = sum(len(split.train) for split in splits) * recipe.training.epochs
    spent = row["seconds"]["gather"] + row["seconds"]["step"]
    assert row["step_samples_per_second"] * spent == pytest.approx(samples)
    assert row["samples_per_second"] * row["seconds"]["train"] == pytest.approx(samples)


def test_samples_that_a_method_sets_apart_are_not_counted():
    recipe = tiny_recipe("fedapen", method__adaptability=0.4)
    (row,) = measure(recipe, "tiny", repeats=1, fused=1, ways=["reference"])["rows"]
    setting = prepare(recipe, torch.device("cpu"))
    samples = sum(len(setting.subsets(client)["train"]) for client in schedule(recipe)[0]) * recipe.training.epochs
    assert row["samples_per_second"] * row["seconds"]["train"] == pytest.approx(samples)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "fd", "training__lr": 1e30, "training__precision": "fp32"}, "became NaN or infinite in the first round"),
        ({"method": "standalone", "training__lr": 1e-40}, "does not change any weights"),
    ],
)
def test_what_cannot_be_compared_is_said(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        measure(tiny_recipe(**settings), "tiny", device="cpu", repeats=1, fused=1)
