"""Runs with differential privacy: the noise is what was asked for, its epsilon is recorded, and a budget ends a run."""

import json

import pytest
import torch
from tiny import tiny_recipe

import fedmrl
from fedmrl.errors import InterruptedRun, UserError
from fedmrl.federation.launch import run_seeds
from fedmrl.federation.setup import prepare
from fedmrl.federation.simulated import SimulatedClients
from fedmrl.federation.simulation import Simulation
from fedmrl.methods import Round
from fedmrl.privacy import Ledger, clipped_update
from fedmrl.report.page import page_data
from fedmrl.report.runs import find_runs, make_series
from fedmrl.report.tensorboard import scalars

CPU = torch.device("cpu")
CLIP, NOISE = 0.1, 3.0
WEIGHT_SHARING = ("fedmrl", "fml", "fedapen", "lg-fedavg")


def private(method="fedmrl", mode="central", **settings):
    settings = {"privacy__simulation": True, "privacy__clip": CLIP, "privacy__noise": NOISE, **settings}
    return tiny_recipe(method, method__weighting="uniform", privacy__mode=mode, privacy__delta=0.01, **settings)


def epsilons(recipe, rounds):
    """Epsilon after each of so many rounds of two clients of four, in central mode."""
    ledger, found = Ledger(recipe.privacy), []
    for _ in range(rounds):
        ledger.spend(4, [0, 1])
        found.append(ledger.epsilon)
    return found


def flat(content):
    return torch.cat([tensor.double().flatten() for tensor in content.values()])


def asked_and_replied(recipe, index=0):
    setting = prepare(recipe, CPU)
    fed = Simulation(recipe, setting)
    requests = fed.requests(round_ := Round(index, recipe.rounds))
    return fed, requests, fed.clients.train(round_, requests)


@pytest.mark.parametrize("method", WEIGHT_SHARING)
def test_central_noise_in_the_averaged_model_has_the_variance_that_was_asked_for(method):
    recipe = private(method, participation=1.0, rounds=50)
    fed, requests, replies = asked_and_replied(recipe)
    clipped = [flat(clipped_update(a.upload, r.content, CLIP)) for a, r in zip(replies, requests, strict=True)]
    assert all(update.norm() <= CLIP + 1e-9 for update in clipped)
    clean = flat(fed.now.server) + sum(clipped) / 4
    noise = torch.cat([flat(fed.aggregate(Round(index, 50), replies)) - clean for index in range(50)])
    # At least 1,400 numbers, so the variance is known to 4 %: half or twice of it fails.
    assert noise.square().mean().item() == pytest.approx((NOISE * CLIP / 4) ** 2, rel=0.2)
    assert abs(noise.mean().item()) < 5 * NOISE * CLIP / 4 / len(noise) ** 0.5


@pytest.mark.parametrize("method", WEIGHT_SHARING)
def test_local_noise_in_the_averaged_model_is_that_of_each_upload_over_the_number_of_replies(method):
    mode = {"mode": "local", "participation": 1.0, "rounds": 1, "clients": 12}
    fed, requests, replies = asked_and_replied(private(method, **mode))
    open_recipe = tiny_recipe(method, method__weighting="uniform", participation=1.0, rounds=1, clients=12)
    _, _, bare = asked_and_replied(open_recipe)
    own = [flat(clipped_update(b.upload, r.content, CLIP)) for b, r in zip(bare, requests, strict=True)]
    each = [flat(a.upload) - flat(r.content) - update for a, r, update in zip(replies, requests, own, strict=True)]
    assert torch.cat(each).square().mean().item() == pytest.approx((NOISE * CLIP) ** 2, rel=0.25)
    mean = flat(fed.aggregate(Round(0, 1), replies)) - flat(fed.now.server) - sum(own) / 12
    assert mean.tolist() == pytest.approx((sum(each) / 12).tolist(), abs=1e-9), "the server adds none of its own"
    if method != "lg-fedavg":  # its header has 28 numbers, too few for a variance
        assert mean.square().mean().item() == pytest.approx((NOISE * CLIP) ** 2 / 12, rel=0.25)


def test_a_client_keeps_its_state_without_noise():
    recipes = private(mode="local"), tiny_recipe(method__weighting="uniform")
    protected, bare = (asked_and_replied(recipe)[0] for recipe in recipes)
    for fed in (protected, bare):
        fed.commit(fed.next_round())
    states = protected.states(), bare.states()
    assert all(torch.equal(states[0][k][name], states[1][k][name]) for k in states[1] for name in states[1][k])


@pytest.mark.parametrize("mode", ["central", "local"])
def test_the_same_seed_gives_other_noise_unless_the_recipe_says_simulation(mode):
    def ends(simulation):
        return {fedmrl.run(private(mode=mode, rounds=1, privacy__simulation=simulation)).states_sha256 for _ in range(2)}

    assert len(ends(simulation=True)) == 1
    assert len(ends(simulation=False)) == 2


def test_each_round_records_the_epsilon_so_far_and_the_result_has_the_last():
    recipe = private(rounds=3)
    result = fedmrl.run(recipe)
    assert [record.epsilon for record in result.records] == epsilons(recipe, 3)
    assert result.privacy.epsilon == result.records[-1].epsilon and not result.privacy.stopped
    assert dict(scalars(result.records[0]))["epsilon"] == epsilons(recipe, 1)[0], "TensorBoard has it, too"
    assert result.privacy.model_dump(include={"mode", "clip", "noise", "delta", "simulation"}) == recipe.privacy.model_dump(
        exclude={"budget"}
    )


def test_a_client_that_joins_counts_among_those_from_whom_the_next_rounds_clients_are_drawn():
    recipe = private(rounds=2)
    fed = Simulation(recipe, setting := prepare(recipe, CPU))
    fed.commit(fed.next_round())
    fed.join(setting.members[0])
    result = fed.run()
    ledger = Ledger(recipe.privacy)
    ledger.spend(4, [0, 1])
    ledger.spend(5, [0, 1])
    assert result.privacy.epsilon == ledger.epsilon


def test_without_privacy_neither_a_record_nor_the_result_mentions_it(tmp_path):
    fedmrl.run(tiny_recipe(rounds=1), out=tmp_path / "run")
    assert "epsilon" not in (tmp_path / "run" / "rounds.jsonl").read_text()
    assert "privacy" not in json.loads((tmp_path / "run" / "summary.json").read_text())
    assert not (tmp_path / "run" / "privacy.jsonl").exists()


def test_a_client_that_does_not_reply_counts_as_one_that_learned_nothing_and_a_silent_round_has_its_noise():
    recipe = private(participation=1.0)
    fed, requests, replies = asked_and_replied(recipe)
    clipped = [flat(clipped_update(a.upload, r.content, CLIP)) for a, r in zip(replies, requests, strict=True)]
    all_of_them, one, nobody = (flat(fed.aggregate(Round(0, 3), some)) for some in (replies, replies[:1], []))
    assert (all_of_them - nobody).tolist() == pytest.approx((sum(clipped) / 4).tolist(), abs=1e-12)
    assert (one - nobody).tolist() == pytest.approx((clipped[0] / 4).tolist(), abs=1e-12)
    assert (nobody - flat(fed.now.server)).square().mean().item() == pytest.approx((NOISE * CLIP / 4) ** 2, rel=0.3)


def test_seeds_that_run_together_have_the_noise_and_the_epsilon_that_each_has_alone():
    recipe = private(rounds=2)
    together = run_seeds(recipe, [0, 1])
    alone = [fedmrl.run(recipe, settings={"seed": seed}) for seed in (0, 1)]
    assert [run.states_sha256 for run in together] == [run.states_sha256 for run in alone]
    assert [run.privacy for run in together] == [run.privacy for run in alone]


def limited(rounds, **settings):
    """A recipe whose budget is enough for so many rounds of nine."""
    enough = epsilons(private(), rounds)[-1]
    return private(rounds=9, evaluation__every=9, privacy__budget=enough, **settings)


@pytest.mark.parametrize("simulation", [True, False])
def test_a_run_ends_before_the_round_that_would_exceed_its_budget_and_keeps_what_it_has(tmp_path, simulation):
    recipe = limited(2, privacy__simulation=simulation)
    result = fedmrl.run(recipe, out=tmp_path / "run")
    assert (result.status, result.rounds, len(result.records), result.privacy.stopped) == ("finished", 2, 2, True)
    assert result.privacy.epsilon == recipe.privacy.budget
    assert result.headline() == result.inference.aggregated["mix-large"], "all clients are measured at the end"
    again = fedmrl.run(recipe, out=tmp_path / "run", resume=True, on_round=lambda _: pytest.fail("it trained"))
    assert again.plain() == result.plain()


def test_a_run_that_has_used_up_its_budget_can_be_compared_and_shown(tmp_path):
    methods = [fedmrl.FedMRL(d1=3, weighting="uniform"), fedmrl.FML(weighting="uniform")]
    compared = fedmrl.compare(limited(2), methods, seeds=[0, 1], out=tmp_path / "both")
    assert [len(run.records) for runs in compared.outcomes.values() for run in runs] == [2] * 4
    shown = page_data(make_series(find_runs([tmp_path / "both"])[0]))
    assert "2 rounds" in shown["facts"]
    assert any("FedMRL: It ended after round 2 of 9: one more would have exceeded privacy.budget" in n for n in shown["notes"])
    again = fedmrl.compare(limited(2), methods, seeds=[0, 1], out=tmp_path / "both", resume=True)
    assert again.table() == compared.table()


def test_seeds_that_a_budget_ends_at_different_rounds_are_shown_apart(tmp_path):
    recipe = private(mode="local", rounds=6, evaluation__every=6, participation=0.25)
    ledger = Ledger(recipe.privacy)
    for _ in range(2):
        ledger.spend(4, [0])
    settings = {"privacy.budget": ledger.epsilon}
    runs = [fedmrl.run(recipe, settings={**settings, "seed": s}, out=tmp_path / f"seed-{s}") for s in range(4)]
    assert len({run.rounds for run in runs}) > 1
    shown = page_data(make_series(find_runs([tmp_path])[0]))
    assert sum(len(one["seeds"]) for one in shown["series"]) == 4
    assert "rounds" not in shown["facts"].replace("a round", "")


def stop_after(rounds):
    def on_round(record):
        if record.round == rounds:
            raise KeyboardInterrupt

    return on_round


@pytest.mark.parametrize("mode", ["central", "local"])
def test_a_private_run_that_is_stopped_and_resumed_ends_like_one_that_is_not(tmp_path, mode):
    whole = fedmrl.run(private(mode=mode, rounds=4))
    with pytest.raises(InterruptedRun):
        fedmrl.run(private(mode=mode, rounds=4), out=tmp_path / "parts", on_round=stop_after(2))
    parts = fedmrl.run(private(mode=mode, rounds=4), out=tmp_path / "parts", resume=True)
    assert parts.states_sha256 == whole.states_sha256 and parts.privacy == whole.privacy
    assert [record.epsilon for record in parts.records] == [record.epsilon for record in whole.records]


def lose_round(number, monkeypatch):
    """Lets the next run be stopped in the middle of a round, after its clients were asked."""
    trains = SimulatedClients.train

    def train(self, round_, requests, upcoming=()):
        trains(self, round_, requests, upcoming)
        if round_.index + 1 == number:
            monkeypatch.setattr(SimulatedClients, "train", trains)
            raise KeyboardInterrupt
        return trains(self, round_, requests, upcoming)

    monkeypatch.setattr(SimulatedClients, "train", train)


@pytest.mark.parametrize(("simulation", "counted"), [(False, 4), (True, 3)])
def test_a_round_that_is_lost_and_run_again_with_other_noise_counts_twice(tmp_path, monkeypatch, simulation, counted):
    recipe = private(rounds=3, privacy__simulation=simulation)
    lose_round(2, monkeypatch)
    with pytest.raises(InterruptedRun):
        fedmrl.run(recipe, out=tmp_path / "run")
    result = fedmrl.run(recipe, out=tmp_path / "run", resume=True)
    assert len(result.records) == 3
    assert result.privacy.epsilon == epsilons(recipe, counted)[-1]


def test_a_lost_round_that_used_up_the_budget_ends_the_run_with_what_it_has_measured_on_all_clients(tmp_path, monkeypatch):
    recipe = limited(2, privacy__simulation=False)
    lose_round(2, monkeypatch)
    with pytest.raises(InterruptedRun):
        fedmrl.run(recipe, out=tmp_path / "run")
    result = fedmrl.run(recipe, out=tmp_path / "run", resume=True)
    assert (len(result.records), result.privacy.stopped) == (1, True)
    assert result.headline() == result.inference.aggregated["mix-large"]
    assert fedmrl.run(recipe, out=tmp_path / "run", resume=True).plain() == result.plain()
    (tmp_path / "run" / "summary.json").unlink()  # the checkpoint alone gives it, too
    assert fedmrl.run(recipe, out=tmp_path / "run", resume=True).states_sha256 == result.states_sha256


def test_a_run_whose_only_round_was_lost_says_that_the_budget_is_used_up(tmp_path, monkeypatch):
    recipe = limited(1, privacy__simulation=False)
    lose_round(1, monkeypatch)
    with pytest.raises(InterruptedRun):
        fedmrl.run(recipe, out=tmp_path / "run")
    with pytest.raises(UserError, match=r"has no complete round, and those that were interrupted have used up privacy\.budget"):
        fedmrl.run(recipe, out=tmp_path / "run", resume=True)


def test_a_run_that_has_lost_its_list_of_rounds_is_not_resumed_and_a_line_that_was_cut_off_does_not_count(tmp_path):
    recipe = private(rounds=3, privacy__simulation=False)
    with pytest.raises(InterruptedRun):
        fedmrl.run(recipe, out=tmp_path / "run", on_round=stop_after(2))
    path = tmp_path / "run" / "privacy.jsonl"
    text = path.read_text()
    path.write_text(text.splitlines(keepends=True)[0])
    with pytest.raises(UserError, match=r"privacy\.jsonl has lost rounds"):
        fedmrl.run(recipe, out=tmp_path / "run", resume=True)
    path.write_text(text + '{"round": 3, "cli')
    result = fedmrl.run(recipe, out=tmp_path / "run", resume=True)
    assert result.privacy.epsilon == epsilons(recipe, 3)[-1] and len(path.read_text().splitlines()) == 3


def test_the_page_shows_epsilon_and_says_that_simulated_noise_protects_nobody(tmp_path):
    fedmrl.run(private(rounds=1), out=tmp_path / "simulated")
    fedmrl.run(private(rounds=1, privacy__simulation=False), out=tmp_path / "real")
    simulated, real = (page_data(make_series(find_runs([tmp_path / name])[0])) for name in ("simulated", "real"))
    (card,) = [card for card in real["answers"]["fair"]["cards"] if card["label"] == "Privacy"]
    assert card["value"] == f"ε = {epsilons(private(), 1)[-1]:.3g}" and card["notes"] == ["at δ = 0.01, central noise"]
    assert any("protects nobody" in note for note in simulated["notes"])
    assert not any("protects nobody" in note for note in real["notes"])


def test_the_command_says_what_a_run_spent_and_why_it_ended_early(tmp_path, fedmrl):
    recipe = limited(1)
    (tmp_path / "mine.toml").write_text(recipe.to_toml())
    code, said, _ = fedmrl("run", str(tmp_path / "mine.toml"), "--out", str(tmp_path / "run"))
    plain = " ".join(said.split())
    assert code == 0 and f"Privacy (central noise): ε = {recipe.privacy.budget:.3g} at δ = 0.01" in plain
    assert "It ended after round 1 of 9: one more would have exceeded privacy.budget" in plain
    assert "protects nobody" in plain
