"""Clipping, noise and the epsilon that is spent, by hand; and what privacy refuses."""

import math
import os
import sys

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_recipe

from fedmrl.config import load_recipe
from fedmrl.errors import UserError
from fedmrl.federation.setup import prepare
from fedmrl.privacy import Ledger, Privacy, check_privacy, clipped_update, system_normal

CPU = torch.device("cpu")
SOME = {"mode": "central", "clip": 1.0, "noise": 2.0, "delta": 0.01}
RECIPE = {
    "privacy.mode": "central",
    "privacy.clip": 1,
    "privacy.noise": 2,
    "privacy.delta": 0.01,
    "method.weighting": "uniform",
}


def privacy(**changes):
    return Privacy(**{**SOME, **changes})


def tensors(*values):
    return {f"small.{place}": torch.tensor(value, dtype=torch.float64) for place, value in enumerate(values)}


def none(count):
    return np.zeros(count)


def test_the_norm_that_is_clipped_is_that_of_the_update_over_all_tensors():
    received, upload = tensors([10.0, 10.0], [10.0]), tensors([13.0, 10.0], [6.0])  # an update of (3, 0, -4), norm 5
    half, whole = clipped_update(upload, received, clip=2.5), clipped_update(upload, received, clip=5.0)
    assert [half["small.0"].tolist(), half["small.1"].tolist()] == [[1.5, 0.0], [-2.0]]
    assert [whole["small.0"].tolist(), whole["small.1"].tolist()] == [[3.0, 0.0], [-4.0]]
    assert clipped_update(received, received, clip=1.0)["small.0"].tolist() == [0.0, 0.0]


def test_the_servers_mean_is_over_those_asked_and_who_does_not_reply_has_an_update_of_zero():
    server, uploads = tensors([1.0, 1.0]), [tensors([1.0, 1.5]), tensors([4.0, 5.0])]  # updates (0, 0.5) and (3, 4)
    (mean,) = privacy(clip=1.0).server_mean(server, uploads, asked=4, draw=none).values()
    assert mean.tolist() == pytest.approx([1 + 0.6 / 4, 1 + (0.5 + 0.8) / 4])


def test_the_noise_has_the_multiplier_times_the_clip_in_the_sum_and_in_each_clients_own_upload():
    private, server = privacy(clip=3.0, noise=2.0), tensors([1.0])
    (mean,) = private.server_mean(server, [server, server], asked=2, draw=np.ones).values()
    (own,) = private.own_upload(tensors([2.0]), server, draw=np.ones).values()
    assert mean.tolist() == [1 + 2 * 3 / 2] and own.tolist() == [1 + 1 + 2 * 3]


vectors = st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3)


@given(st.lists(vectors, min_size=1, max_size=4), vectors, st.booleans())
def test_another_client_or_a_silent_one_moves_the_mean_by_at_most_twice_the_clip_over_those_asked(values, other, silent):
    private, server = privacy(clip=0.5), tensors([1.0, -2.0, 3.0])
    uploads = [tensors(value) for value in values]
    changed = uploads[1:] if silent else [tensors(other), *uploads[1:]]
    one, two = (private.server_mean(server, sent, len(uploads), none)["small.0"] for sent in (uploads, changed))
    assert (one - two).norm() <= 2 * 0.5 / len(uploads) + 1e-9


def test_the_systems_noise_is_standard_normal():
    drawn = system_normal(200_000)
    assert abs(drawn.mean()) < 8 / math.sqrt(200_000)
    assert drawn.var() == pytest.approx(1, abs=8 * math.sqrt(2 / 200_000))
    assert np.mean(np.abs(drawn) < 1.959964) == pytest.approx(0.95, abs=0.005)
    assert not np.array_equal(drawn, system_normal(200_000))


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_the_systems_noise_is_finite_for_the_smallest_and_the_largest_bits(monkeypatch, byte):
    monkeypatch.setattr(os, "urandom", lambda count: byte * count)
    (drawn,) = system_normal(1)
    assert 8 < abs(drawn) < 9 and bool(drawn > 0) is (byte == b"\xff")


def test_simulated_noise_follows_from_the_seed_the_round_and_the_client():
    simulated = privacy(simulation=True)
    keys = [(0, 0, None), (1, 0, None), (0, 1, None), (0, 0, 0), (0, 0, 1)]
    drawn = [simulated.draw(*key)(3).tolist() for key in keys]
    assert drawn == [simulated.draw(*key)(3).tolist() for key in keys]
    assert len({tuple(values) for values in drawn}) == len(keys)


def spent(private, rounds):
    ledger = Ledger(private)
    for clients, asked in rounds:
        ledger.spend(clients, asked)
    return ledger


def test_central_epsilon_is_the_accountants_for_sampling_without_replacement_at_half_the_multiplier_and_grows():
    def accountants(rounds):
        accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
        for clients, asked in rounds:
            noise = dp_accounting.GaussianDpEvent(2.0 / 2)
            accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(clients, len(asked), noise))
        return accountant.get_epsilon(0.01)

    rounds = [(50, range(10)), (50, range(10, 20)), (60, range(12))]
    found = [spent(privacy(), rounds[:count]).epsilon for count in (1, 2, 3)]
    assert found == pytest.approx([accountants(rounds[:count]) for count in (1, 2, 3)], rel=1e-12)
    assert 0 < found[0] < found[1] < found[2]


def test_with_all_clients_epsilon_is_that_of_a_gaussian_whose_sensitivity_is_twice_the_clip():
    # Four rounds are exactly one with half the noise; the accountant's bound on it is a little above the exact value.
    ledger = spent(privacy(noise=4.0), [(10, range(10))] * 4)
    exact = dp_accounting.get_epsilon_gaussian(4.0 / 2 / math.sqrt(4), 0.01)
    assert exact <= ledger.epsilon < 1.2 * exact
    assert ledger.epsilon == ledger.epsilon_if_known


def test_local_epsilon_is_that_of_the_client_that_was_asked_most_often_and_sampling_does_not_help():
    rounds = [(50, [0, 1]), (50, [1, 2]), (50, [1, 3])]
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(2.0 / 2), 3)
    assert spent(privacy(mode="local"), rounds).epsilon == pytest.approx(accountant.get_epsilon(0.01), rel=1e-12)
    assert spent(privacy(mode="local"), rounds).epsilon == spent(privacy(), rounds).epsilon_if_known


def test_a_round_exceeds_the_budget_if_epsilon_would_be_above_it():
    two = spent(privacy(), [(50, range(10))] * 2).epsilon
    for budget, exceeds in ((two, False), (two - 1e-9, True), (None, False)):
        assert spent(privacy(budget=budget), [(50, range(10))]).exceeds(50, range(10)) is exceeds


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"method.name": "fedproto"},
            "privacy is for methods that average clients' weights, and fedproto does not; leave it out",
        ),
        ({"method.name": "standalone"}, "and standalone does not; leave it out"),
        ({"method.name": "fedkd", "method.weighting": "uniform"}, "and fedkd sends something else"),
        ({"method.weighting": "samples"}, "set method.weighting to 'uniform'"),
        ({"aggregation.rule": "median"}, "aggregation.rule is 'median', and privacy.mode 'central' adds noise to the mean"),
        ({"participation": "who.json"}, "participation is a file, and privacy.mode 'central' counts on clients that are drawn"),
        (
            {"privacy.delta": 0.02},
            "privacy.delta is 0.02, which would allow one of 50 clients to be exposed; choose less than 0.02",
        ),
        ({"privacy.noise": 0}, "privacy.noise is 0; it must be above 0"),
        ({"privacy.mode": "both"}, "privacy.mode is 'both'; choose 'central', 'local'"),
        ({"privacy.nose": 1}, "there is no key privacy.nose; did you mean privacy.noise?"),
    ],
)
def test_what_cannot_be_protected_is_refused_in_a_sentence(changes, sentence):
    settings = {**RECIPE, **changes}
    if changes.get("method.name") in ("fedproto", "standalone"):  # they have no such field
        settings.pop("method.weighting")
    with pytest.raises(UserError) as refusal:
        load_recipe("quickstart", settings)
    assert sentence in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_setting_that_is_missing_is_named():
    with pytest.raises(UserError, match=r"privacy\.clip is missing; give it a value"):
        load_recipe("quickstart", {key: value for key, value in RECIPE.items() if key != "privacy.clip"})


def test_local_privacy_takes_any_rule_and_a_list_of_clients():
    changes = {"privacy.mode": "local", "aggregation.rule": "median", "participation": "who.json"}
    assert load_recipe("quickstart", {**RECIPE, **changes}).privacy.mode == "local"


def test_a_recipe_with_privacy_is_written_and_read_back_and_one_without_does_not_mention_it(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(load_recipe("quickstart", {**RECIPE, "privacy.budget": 8}).to_toml())
    assert load_recipe(path).privacy == privacy(budget=8.0)
    assert "privacy" not in load_recipe("quickstart").to_toml()
    assert load_recipe(path, {"privacy.noise": 3}).privacy.noise == 3


def test_a_method_of_ones_own_that_sends_something_else_is_refused():
    from fedmrl import FedMRL

    class SendsMore(FedMRL):
        name = "sends-more"

        def upload(self, net, sums, round_):
            return {**super().upload(net, sums, round_), "norm": torch.ones(1)}

    with pytest.raises(UserError, match="and sends-more sends something else"):
        load_recipe("quickstart", RECIPE).with_method(SendsMore(weighting="uniform"))


def test_whole_numbers_among_what_clients_share_are_refused():
    start = {"small.bn.running_mean": torch.zeros(2), "small.bn.num_batches_tracked": torch.tensor(0)}
    with pytest.raises(UserError, match=r"small\.bn\.num_batches_tracked holds whole numbers"):
        check_privacy(privacy(), 4, [0, 1], start)


def test_a_budget_that_a_single_round_exceeds_is_refused_before_anything_runs():
    settings = {key.replace(".", "__"): value for key, value in RECIPE.items()}
    with pytest.raises(UserError, match=r"privacy\.budget is 0\.5, and a single round spends an epsilon of [\d.]+; raise"):
        prepare(tiny_recipe(**settings, privacy__budget=0.5), CPU)


def test_without_the_accountant_privacy_says_how_to_get_it(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "dp_accounting"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"needs the package dp-accounting.*pip install 'fedmrl\[privacy\]'"):
        check_privacy(privacy(), 4, [0, 1], {})
