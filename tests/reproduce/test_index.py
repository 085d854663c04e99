"""What the page of a reproduction says: numbers by hand, what is missing or diverged, and that nothing can become markup."""

import json

import numpy as np
import pytest
from synthetic import OLD, all_cells, cell, diverged, of_clients, reaching
from test_page import EVIL, Elements, plain

from fedmrl.cli import render
from fedmrl.reproduce.cells import CellCurve, write_cell
from fedmrl.reproduce.claims import claims_table
from fedmrl.reproduce.experiments import CPU, METHOD_ORDER, PAPER, QUICK
from fedmrl.reproduce.figures import curves_figure
from fedmrl.reproduce.index import MAX_POINTS, index, index_data, thinned, write_index
from fedmrl.reproduce.measurements import Measurements

MAIN, OTHER = "cifar10-n100", "cifar100-n100"


def answer(cells, protocol="fair", scale=PAPER):
    return index_data(cells, scale)["answers"][protocol]


def card(cells, claim, protocol="fair", scale=PAPER):
    """A claim's card, if there is one."""
    found = {one["claim"]: one for one in answer(cells, protocol, scale)["cards"]}
    return found.get(claim)


def values(shown):
    return [plain(value) for value, _ in shown["values"]]


def captions(shown):
    return [plain(caption) for _, caption in shown["values"]]


def entry(data, row, column, protocol, kind="heterogeneous"):
    """What stands in a place of the table, without what is empty."""
    rows = {one["name"]: one["entries"] for group in data["tables"][kind][protocol]["groups"] for one in group}
    return {name: text for name, text in rows[row][column].items() if text}


def column(data, title):
    """A column of the table of runs, as it is shown."""
    found = next(one for one in data["runs"]["columns"] if one["title"] == title)
    return found.get("labels", found["values"])


# The answer


def test_without_cells_there_is_a_page_that_says_so():
    data = index_data([], PAPER)
    assert data["answers"]["fair"]["title"] == "Too few runs to rank FedMRL"
    assert "0 of 200 runs are measured" in data["facts"] and data["answers"]["fair"]["cards"] == []
    assert not any(data[part] for part in ("tables", "curves", "costs", "sweeps", "runs"))
    assert list(data["contents"]) == ["repeat", "glossary"]
    assert data["clients"] == data["inference"] == {"fair": [], "own": []}


def test_the_title_counts_first_places_and_leads_under_each_protocol():
    cells = [
        cell(MAIN, "fedmrl", fair=0.8, paper=0.9),
        cell(MAIN, "fedproto", fair=0.75, paper=0.95),
        cell(OTHER, "fedmrl", fair=0.6, paper=0.7),
        cell(OTHER, "fml", fair=0.5, paper=0.5),
    ]
    assert plain(answer(cells)["title"]) == "FedMRL is first in both federations so far, by 5.0 to 10.0 points"
    assert plain(answer(cells, "paper")["title"]) == "FedMRL is first in 1 of 2 federations so far, by 20.0 points"
    found = [card(cells, "Most accurate", protocol) for protocol in ("fair", "paper")]
    assert [values(shown) for shown in found] == [["2 of 2"], ["1 of 2"]]
    assert [shown["verdict"] for shown in found] == ["so far: holds", "so far: holds in part"]


def test_who_is_behind_is_said_to_be_behind():
    cells = [cell(MAIN, "fedmrl", fair=0.8), cell(MAIN, "fd", fair=0.82)]
    assert plain(answer(cells)["title"]) == "FedMRL is not first in the only federation so far, 2.0 points behind"
    assert card(cells, "Most accurate")["verdict"] == "so far: does not hold"


def test_a_verdict_stays_only_when_every_run_that_it_takes_is_measured():
    whole = [
        cell(f"{dataset}-{federation}{kind}", method, seed, fair=0.9 if method == "fedmrl" else 0.8)
        for kind in ("", "-homogeneous")
        for dataset in PAPER.datasets
        for federation in PAPER.federations
        for method in METHOD_ORDER
        for seed in PAPER.seeds_of(f"{dataset}-{federation}{kind}", method)
    ]
    assert card(whole, "Most accurate")["verdict"] == "holds"
    assert plain(answer(whole)["title"]) == "FedMRL is first in all 6 federations, by 10.0 points"
    for lacking in (("cifar10-n10", "fd", 0), (MAIN, "fedapen", 2), ("cifar10-n10-homogeneous", "fd", 0)):
        cells = [one for one in whole if one.key != lacking]
        assert card(cells, "Most accurate")["verdict"] == "so far: holds"
    cells = [one for one in whole if one.key != (MAIN, "fedapen", 2)]
    assert "so far" in answer(cells)["title"]
    assert card(cells, "Ahead of the others")["verdict"] == "so far: holds", "its column lacks a seed"


def test_first_counts_clients_with_one_model_for_all_as_well():
    cells = [cell(MAIN, "fedmrl", fair=0.8), cell(MAIN, "fml", fair=0.7)]
    cells += [cell(f"{MAIN}-homogeneous", "fedmrl", fair=0.7), cell(f"{MAIN}-homogeneous", "fml", fair=0.8)]
    shown = card(cells, "Most accurate")
    assert (values(shown), shown["verdict"]) == (["1 of 1", "0 of 1"], "so far: holds in part")


def test_who_loses_with_the_one_seed_that_both_have_is_not_first():
    cells = [cell(MAIN, "fedmrl", seed, fair=fair) for seed, fair in enumerate((0.8, 0.9, 0.9))]
    cells.append(cell(MAIN, "fedproto", fair=0.85))
    assert plain(answer(cells)["title"]) == "FedMRL is not first in the only federation so far, 5.0 points behind"
    assert (
        "FedMRL 86.67 %, −5.00 points against FedProto, the best of the others so far, over seed 0, which both have."
        in plain(answer(cells)["lead"])
    )
    shown = card(cells, "Ahead of the others")
    assert (values(shown), shown["verdict"]) == (["−5.0"], "so far: does not hold")
    data = index_data(cells, PAPER)
    assert entry(data, "FedProto", 2, "fair") == {"text": "85.00", "mark": "best", "seeds": "seed 0"}
    assert "Over fewer seeds: FedProto (seed 0)." in data["curves"][2]["absent"]


def test_who_shares_no_seed_with_the_others_cannot_be_judged():
    cells = [cell(MAIN, "fedmrl", 1), *(cell(MAIN, method) for method in ("fml", "fd"))]
    assert answer(cells)["title"] == "Too few runs to rank FedMRL"


def test_fedmrl_that_diverged_is_not_first_and_another_that_did_is_no_rival():
    assert answer([diverged(MAIN, "fedmrl"), cell(MAIN, "fd")])["title"] == "FedMRL is not first in the only federation so far"
    assert answer([cell(MAIN, "fedmrl"), diverged(MAIN, "fd")])["title"] == "FedMRL is first in the only federation so far"


def test_the_lead_names_the_best_other_and_under_its_protocol_the_papers_numbers():
    cells = [cell(MAIN, "fedmrl", fair=0.8, paper=0.9), cell(MAIN, "fml", fair=0.7, paper=0.85)]
    assert "N=100, C=10%: FedMRL 80.00 %, +10.00 points against FML, the best of the others so far." in plain(
        answer(cells)["lead"]
    )
    assert "+5.00 points against FML, the best of the others so far (the paper: 95.85 %, +3.36)" in plain(
        answer(cells, "paper")["lead"]
    )


def test_the_margin_says_with_how_many_seeds_it_is_ahead():
    cells = [cell(MAIN, "fedmrl", seed, fair=ours) for seed, ours in enumerate((0.80, 0.90))]
    cells += [cell(MAIN, "fedproto", seed, fair=theirs) for seed, theirs in enumerate((0.82, 0.80))]
    shown = card(cells, "Ahead of the others")
    assert captions(shown) == ["points against FedProto, CIFAR-10 N=100, ahead in 1 of 2 seeds: level"]
    assert (values(shown), shown["verdict"]) == (["+4.0"], "so far: level")
    assert answer(cells)["title"] == "FedMRL is level with the best in the only federation so far"


def test_what_prints_alike_has_no_winner():
    cells = [cell(MAIN, "fedmrl", fair=0.80002), cell(MAIN, "fd", fair=0.80001), cell(MAIN, "fml", fair=0.7)]
    cells += [cell(OTHER, "fedmrl", fair=0.6), cell(OTHER, "fml", fair=0.5)]
    assert (
        plain(answer(cells)["title"])
        == "FedMRL is first in 1 of 2 federations so far, by 10.0 points; level with the best in 1"
    )
    data = index_data(cells, PAPER)
    assert entry(data, "FD", 2, "fair")["mark"] == entry(data, "FedMRL", 2, "fair")["mark"] == "best"
    assert "mark" not in entry(data, "FML", 2, "fair"), "with two first there is no second"


def test_a_toy_gives_no_verdict_on_the_paper():
    cells = [cell("digits-n20", "fedmrl", fair=0.8), cell("digits-n20", "fd", fair=0.7)]
    assert card(cells, "Most accurate", scale=QUICK)["verdict"] == "in this small version, so far: holds"
    assert answer(cells, scale=QUICK)["title"].startswith("In this small version, FedMRL is first")
    said = claims_table(Measurements(cells, QUICK))
    assert "not whether the paper’s claims hold" in said and "in this small version, so far: holds" in said


def test_what_a_test_sample_is_worth_stands_beside_the_gains_if_it_is_much():
    few = of_clients(0.9, 0.8).model_copy(update={"test_samples": [6, 8]})
    for own, much in ((few, True), (of_clients(0.9, 0.8, test=120), False)):
        (panel,) = index_data([cell(MAIN, m, clients=own) for m in ("fedmrl", "fedproto")], PAPER)["clients"]["fair"]
        assert ("one sample is worth 14 points" in plain(panel["said"])) == much


def test_convergence_is_against_the_soonest_that_reaches_the_target_with_every_seed():
    rounds = {"fedmrl": (40, 40), "fedproto": (70, 70), "fml": (10, None)}
    cells = [
        cell(MAIN, method, seed, **reaching(0.9, at)) for method, of_seeds in rounds.items() for seed, at in enumerate(of_seeds)
    ]
    shown = card(cells, "Learns in fewer rounds")
    assert (values(shown), captions(shown)) == (["40"], ["rounds to 90 %, CIFAR-10; FedProto: 70"])
    assert shown["verdict"] == "so far: holds"
    with_seed_0 = [one for one in cells if one.seed == 0 or one.method == "fedmrl"]
    assert captions(card(with_seed_0, "Learns in fewer rounds")) == ["rounds to 90 %, CIFAR-10; FML: 10"]
    unreached = [cell(MAIN, "fedmrl", **reaching(0.9)), cells[2]]
    assert card(unreached, "Learns in fewer rounds")["verdict"] == "so far: does not hold"
    assert card([unreached[0], cell(MAIN, "fml", **reaching(0.9))], "Learns in fewer rounds") is None, "nobody reaches it"
    assert card(cells[:1], "Learns in fewer rounds") is None, "alone it cannot be judged"


def test_what_is_sent_is_held_against_its_kind_and_what_is_computed_against_fedproto():
    costs = {"fedmrl": (2e6, 3e12), "fedproto": (1e3, 4e12), "fml": (3e6, 1e12)}
    cells = [cell(MAIN, m, **reaching(0.9, 9, p, f)) for m, (p, f) in costs.items()]
    sent, computed = card(cells, "Sends less than similar methods"), card(cells, "Computes less")
    more = card(cells, "Sends more than FedProto")
    assert (values(more), captions(more)) == (["2 M"], ["parameters to 90 %, CIFAR-10; FedProto: 1 k"])
    assert more["verdict"] == "so far: holds"
    assert captions(sent) == ["parameters to 90 %, CIFAR-10; FML: 3 M"] and sent["verdict"] == "so far: holds"
    assert captions(computed) == ["FLOPs to 90 %, CIFAR-10; FedProto: 4 T"] and values(computed) == ["3 T"]


def test_the_share_of_clients_that_gain_stands_beside_the_papers():
    cells = [
        cell(MAIN, "fedmrl", clients=of_clients(0.9, 0.8, 0.7, 0.5, own=(0.9, 0.6, 0.5, 0.5))),
        cell(MAIN, "fedproto", clients=of_clients(0.8, 0.7, 0.6, 0.6)),
    ]
    shown = card(cells, "Most clients gain")
    assert values(shown) == ["75 %"] and captions(shown) == ["of clients, CIFAR-10; the paper: 87 %"]
    assert values(card(cells, "Most clients gain", "own")) == ["25 %"]
    assert card(cells, "Most clients gain", "paper") is None, "the paper's protocol does not look at all clients"
    (panel,) = index_data(cells, PAPER)["clients"]["fair"]
    assert panel["chart"]["labels"] == ["+10.0", "+10.0", "+10.0", "−10.0"] and plain(panel["paper"]) == "The paper: 87 %."


def test_mix_small_is_enough_where_it_is_nearer_to_mix_large_than_to_a_single_model():
    def modes(small, single):
        found = {"mix-large": 0.9, "mix-small": small, "single-small": single, "single-large": 0.3}
        return [cell(MAIN, "fedmrl", inference={"aggregated": found, "own": found})]

    near, far = (card(modes(*of), "mix-small is enough") for of in ((0.88, 0.6), (0.7, 0.65)))
    assert (values(near), near["verdict"]) == (["−2.0"], "so far: holds")
    assert captions(near) == ["points, CIFAR-10; best single model: −30.0"]
    assert (values(far), far["verdict"]) == (["−20.0"], "so far: does not hold")


def test_matryoshka_learning_is_judged_by_dimension():
    cells = [cell(MAIN, "fedmrl", fair=0.8), cell(MAIN, "fedmrl-without-mrl-d1-100", fair=0.7)]
    cells += [cell(MAIN, "fedmrl-d1-150", fair=0.7), cell(MAIN, "fedmrl-without-mrl-d1-150", fair=0.75)]
    shown = card(cells, "Matryoshka helps")
    assert values(shown) == ["1 of 2"] and shown["verdict"] == "so far: holds in part"


def test_the_gain_of_matryoshka_learning_is_held_against_itself_at_the_largest_dimension():
    cells = [cell(MAIN, "fedmrl", fair=0.8), cell(MAIN, "fedmrl-without-mrl-d1-100", fair=0.7)]
    assert card(cells, "Matryoshka helps less at large d₁") is None
    cells += [cell(MAIN, "fedmrl-d1-150", fair=0.75), cell(MAIN, "fedmrl-without-mrl-d1-150", fair=0.7)]
    shown = card(cells, "Matryoshka helps less at large d₁")
    assert (values(shown), captions(shown)) == (["−5.0"], ["points, CIFAR-10, from d₁ = 100 to 150"])
    assert shown["verdict"] == "so far: holds"


def test_a_smaller_dimension_is_better_where_accuracy_falls_from_one_to_the_next():
    cells = [cell(MAIN, "fedmrl", fair=0.8), cell(MAIN, "fedmrl-d1-150", fair=0.7), cell(MAIN, "fedmrl-d1-500", fair=0.75)]
    shown = card(cells, "Smaller d₁ is better")
    assert values(shown) == ["1 of 2"] and shown["verdict"] == "so far: holds in part"
    assert captions(shown) == ["CIFAR-10; best at d₁ = 100"]


@pytest.mark.parametrize(("claim", "suffix"), [("Robust to few classes", "classes-4"), ("Robust to skew", "dirichlet-0.3")])
def test_robustness_is_judged_against_fedproto_at_each_measured_value(claim, suffix):
    cells = [cell(f"{MAIN}-{suffix}", "fedmrl", fair=0.8), cell(f"{MAIN}-{suffix}", "fedproto", fair=0.85)]
    shown = card(cells, claim)
    assert (values(shown), shown["verdict"]) == (["0 of 1"], "so far: does not hold")


def test_the_best_of_its_kind_is_another_rival_than_the_best_of_all():
    cells = [cell(MAIN, "fedmrl", fair=0.8), cell(MAIN, "fd", fair=0.85), cell(MAIN, "fedkd", fair=0.6, paper=0.7)]
    assert values(card(cells, "Ahead of the others")) == ["−5.0"]
    shown = card(cells, "Ahead of similar methods", "paper")
    assert captions(shown)[0].endswith("against FedKD, CIFAR-10 N=100, one seed; the paper: +22.64")
    assert values(card(cells, "Ahead of similar methods")) == ["+20.0"]


def test_margins_are_pairwise_over_the_seeds_that_the_two_have():
    ours, theirs = (0.80, 0.90), (0.70, 0.86)
    cells = [cell(MAIN, "fedmrl", seed, fair=fair) for seed, fair in enumerate(ours)]
    cells += [cell(MAIN, "standalone", seed, fair=fair) for seed, fair in enumerate(theirs)]
    cells.append(cell(MAIN, "fml", fair=0.74))  # seed 0 alone takes nothing from the pair that has both
    shown = card(cells, "Ahead of the others")
    assert (values(shown), captions(shown)) == (["+6.0"], ["points against FML, CIFAR-10 N=100, one seed"])
    cells[-1] = cell(MAIN, "fml", fair=0.71)
    shown = card(cells, "Ahead of the others")
    assert captions(shown) == ["points against Standalone, CIFAR-10 N=100, ahead in 2 of 2 seeds"]
    assert values(shown) == ["+7.0"]


def test_where_fair_and_own_disagree_who_is_first_the_page_and_the_table_say_so():
    cells = [cell(MAIN, "fedmrl", fair=0.8, own=0.7), cell(MAIN, "fml", fair=0.75, own=0.75)]
    said = "The protocols fair and own disagree about the first place: CIFAR-10 N=100 (FedMRL under fair, FML under own)."
    data = index_data(cells, PAPER)
    assert data["disagreements"] == [said]
    notes = {protocol: data["tables"]["heterogeneous"][protocol]["notes"] for protocol in ("fair", "own", "paper")}
    assert said in notes["fair"] and said in notes["own"] and said not in notes["paper"]
    assert said in claims_table(Measurements(cells, PAPER))
    agree = [cells[0], cell(MAIN, "fml", fair=0.6)]
    assert index_data(agree, PAPER)["disagreements"] == []


def test_who_is_no_better_than_guessing_failed_to_converge_and_is_no_rival():
    cells = [cell(MAIN, "fedmrl"), cell(MAIN, "fd", fair=0.0999), cell(MAIN, "fml", fair=0.1001)]
    data = index_data(cells, PAPER)
    assert entry(data, "FD", 2, "fair")["text"] == "–" and entry(data, "FML", 2, "fair")["text"] == "10.01"
    assert "1 of which failed to converge" in data["facts"]
    notes = data["tables"]["heterogeneous"]["fair"]["notes"]
    assert any(note.endswith("no better than chance): FD (CIFAR-10 N=100 no better than chance).") for note in notes)


# Tables and charts


def test_the_table_has_ours_and_under_the_papers_protocol_its_number_and_the_difference():
    data = index_data([cell(MAIN, "fedmrl", s, fair=0.8, paper=p) for s, p in enumerate((0.94, 0.96))], PAPER)
    assert entry(data, "FedMRL", 2, "fair") == {"text": "80.00 ± 0.00", "mark": "best"}
    shown = entry(data, "FedMRL", 2, "paper")
    assert shown == {
        "text": "95.00 ± 1.41", "mark": "best", "aside": "95.85", "aside_mark": "best", "difference": "−0.85"
    }  # fmt: skip


def test_what_diverged_and_what_is_missing_are_told_apart():
    data = index_data([diverged(MAIN, "fd"), cell(MAIN, "fedmrl")], PAPER)
    assert entry(data, "FD", 2, "fair")["text"] == "–" and entry(data, "FML", 2, "fair")["text"] == "·"
    panel = data["curves"][2]
    assert panel["absent"].startswith("Failed to converge: FD. Not measured: Standalone, ")
    assert data["curves"][0]["charts"] is None and "homogeneous" not in data["tables"]


def test_a_long_curve_is_thinned_to_its_last_round():
    kept = thinned(500)
    assert len(kept) <= MAX_POINTS and kept[-1] == 499 and len(set(np.diff(kept))) == 1
    assert thinned(3) == [0, 1, 2], "a short one stays as it is"


def test_the_page_and_the_figure_draw_the_same_curve():
    noisy = {"participants": CellCurve(rounds=list(range(1, 41)), own=[0.4, 0.6] * 20)}
    cells = [cell(MAIN, "fedmrl", curves=noisy)]
    _, drawn = curves_figure(Measurements(cells, PAPER), "paper").axes[0].lines
    (line,) = index_data(cells, PAPER)["curves"][2]["charts"]["paper"]["lines"]
    assert line["mean"] == pytest.approx(drawn.get_ydata(), abs=0.01)


def test_panels_of_a_dataset_share_their_limits():
    charts = [panel["charts"]["fair"]["y"] for panel in index_data(all_cells(PAPER), PAPER)["curves"]]
    assert charts[0] == charts[1] == charts[2] != charts[3] == charts[4] == charts[5]


def test_a_sweep_is_shown_only_where_it_has_a_run_of_its_own():
    plain_runs = [cell(MAIN, "fedmrl"), cell(MAIN, "fedproto")]
    assert index_data(plain_runs, PAPER)["sweeps"] == []
    data = index_data([*plain_runs, cell(f"{MAIN}-dirichlet-0.3", "fedmrl", fair=0.6)], PAPER)
    (sweep,) = data["sweeps"]
    (panel,) = sweep["panels"]
    fair = panel["charts"]["fair"]
    assert sweep["name"] == "non-iid-dirichlet" and fair["lines"][0]["mean"] == [60.0] and fair["places"] == [(0.3, "α = 0.3")]
    assert "FedProto at 0.3" in panel["absent"]


# How to repeat it


def test_seeds_and_runs_that_shared_the_device_share_their_time():
    cells = [cell(MAIN, "fedmrl", seed, together=3, wall_seconds=90.0, device="H200") for seed in range(3)]
    data = index_data([*cells, cell(MAIN, "fd", wall_seconds=60.0, at_once=2, device="H200")], PAPER)
    assert column(data, "seconds") == ["30.0"] * 4 and data["repeat_says"].startswith("2 min 0 s on H200 for these 4 runs")


def test_runs_of_another_recipe_are_left_out_and_named_and_those_beyond_the_figures_counted():
    mine, old = cell(MAIN, "fedmrl", 0, fair=0.8), cell(MAIN, "fedmrl", 1, fair=0.9, **OLD)
    data = index_data([mine, old, cell(f"{MAIN}-by-hand", "fedmrl")], PAPER)
    assert [state.endswith("†") for state in column(data, "final states")] == [False, True, False]
    left_out = "Left out, since their recipe differs from this version's: cifar10-n100/fedmrl (seed 1)."
    assert data["notes"] == [left_out] and "(1 of them not needed" in data["repeat_says"]
    assert "1 of 200 runs are measured" in data["facts"] and entry(data, "FedMRL", 2, "fair")["text"] == "80.00"


def test_each_experiment_says_how_much_of_it_there_is():
    found = {one["name"]: (one["measured"], one["of"]) for one in index_data(all_cells(QUICK), QUICK)["experiments"]}
    assert found["clients"] == (2, 2) and found["table-homo"] == (0, 24) and found["non-iid-class"] == (4, 6)


def test_no_text_in_a_cell_becomes_markup():
    texts = {"command": EVIL, "device": EVIL, "engine": EVIL, "versions": {EVIL: EVIL}}
    bad = diverged(MAIN, "fd").model_copy(update={"diverged": {"round": 1, "reason": EVIL}})
    found = Elements(index([cell(MAIN, "fedmrl", **texts), bad], PAPER))
    expected = Elements(index([cell(MAIN, "fedmrl"), diverged(MAIN, "fd")], PAPER))
    assert found.tags == expected.tags
    assert EVIL in column(json.loads(found.scripts[0]), "command")


@pytest.mark.parametrize("scale", [PAPER, QUICK], ids=["paper", "quick"])
def test_a_whole_reproduction_is_one_small_file_that_asks_for_nothing(scale, tmp_path):
    path = write_index(all_cells(scale), scale, tmp_path / "new")
    text = path.read_text(encoding="utf-8")
    assert "default-src 'none'" in text and "{{" not in text
    assert not [word for word in ("https://", 'src="', "@import", "url(") if word in text]
    assert len(text) < 500_000 and path == tmp_path / "new" / "index.html"


def test_results_open_with_the_page_of_the_papers_scale_or_the_one_nearest_to_it(tmp_path):
    results = tmp_path / "results"
    assert write_index([], QUICK, results / "quick") == results / "quick" / "index.html"
    assert write_index([], CPU, results / "paper-cpu") == results / "index.html"
    assert write_index([], PAPER, results / "paper") == results / "index.html"
    write_cell(results / "paper", cell(MAIN, "fedmrl"))
    assert write_index([], CPU, results / "paper-cpu") == results / "paper-cpu" / "index.html"


def test_a_reproduction_names_only_what_it_wrote(tmp_path, capsys):
    write_cell(tmp_path, diverged(MAIN, "fedmrl"))
    render.reproduction(tmp_path, PAPER)
    said = capsys.readouterr().out
    assert f"Page: {tmp_path / 'index.html'}" in said and f"Tables: {tmp_path / 'tables'}" in said
    assert "Figures" not in said and not (tmp_path / "figures").exists()


def test_a_target_that_nobody_reached_is_folded_away():
    cells = [cell(MAIN, method, **reaching(0.9, 40 if method == "fedmrl" else None)) for method in ("fedmrl", "fml")]
    assert index_data(cells, PAPER)["costs"]["fair"][0]["reached"]
    never = [cell(MAIN, method, **reaching(0.9)) for method in ("fedmrl", "fml")]
    assert not index_data(never, PAPER)["costs"]["fair"][0]["reached"]
    assert "<summary>Reached by none: CIFAR-10, 90%" in index(never, PAPER)
