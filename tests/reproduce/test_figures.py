from itertools import combinations

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.colors import to_hex
from matplotlib.text import Text
from synthetic import OLD, all_cells, cell, diverged, of_clients, reaching

from fedmrl.report.figures import PRINT
from fedmrl.reproduce.cells import CellCurve
from fedmrl.reproduce.experiments import PAPER, QUICK
from fedmrl.reproduce.figures import (
    FIGURES,
    MODES,
    STYLES,
    SWEEPS,
    clients_figure,
    costs_figure,
    curve_values,
    curves_figure,
    gains,
    inference_figure,
    running_mean,
    sweep_figure,
    write_figures,
)
from fedmrl.reproduce.measurements import Measurements

MAIN = "cifar10-n100"


def measurements(*cells, scale=PAPER):
    return Measurements(cells, scale)


def texts(axes):
    return [text.get_text() for text in axes.texts]


def note(figure):
    return figure.get_supxlabel().replace("\n", " ")


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def lines_of(axes, method):
    return [line for line in axes.lines if line.get_color() == STYLES[method].light]


# Accuracy by round


def test_curves_have_a_panel_for_each_dataset_and_federation_that_was_run():
    figure = curves_figure(measurements(cell(), cell("cifar100-n10", "fml")), "fair")
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes]
    assert titles == [f"{data}, {of}" for data in ("CIFAR-10", "CIFAR-100") for of in ("N=10, C=100%", "N=100, C=10%")]
    assert texts(figure.axes[0]) == ["not measured"] and texts(figure.axes[1]) == []
    assert legend(figure) == ["FML", "FedMRL"] and "No runs with N=50." in note(figure)


def test_the_curves_of_a_single_federation_stand_side_by_side_with_limits_of_their_own():
    low = {"all": CellCurve(rounds=[1, 2], own=[0, 0], aggregated=[0.1, 0.2])}
    figure = curves_figure(measurements(cell(), cell("cifar100-n100", curves=low)), "fair")
    left, right = figure.axes
    assert left.get_position().y0 == pytest.approx(right.get_position().y0)
    assert right.get_ylim()[1] < 25 < left.get_ylim()[1]


def test_a_curve_is_the_mean_over_seeds_with_their_range():
    first = {"all": CellCurve(rounds=[1, 2], own=[0, 0], aggregated=[0.2, 0.4])}
    second = {"all": CellCurve(rounds=[1, 2], own=[0, 0], aggregated=[0.4, 0.8])}
    figure = curves_figure(measurements(cell(curves=first), cell(seed=1, curves=second), cell(variant="fml")), "fair")
    axes = figure.axes[0]
    (line,) = lines_of(axes, "fedmrl")
    assert line.get_ydata() == pytest.approx([30, 60])
    (band,) = axes.collections  # FML has one seed, and so no band
    assert (
        band.get_datalim(axes.transData).y0 == pytest.approx(20) and to_hex(band.get_facecolor()[0]) == STYLES["fedmrl"].light
    )
    assert line.get_linewidth() > lines_of(axes, "fml")[0].get_linewidth()
    assert "band: their range" in note(figure)


def test_a_protocol_looks_at_its_own_clients_with_its_own_models():
    curves = {
        "all": CellCurve(rounds=[10, 20], own=[0.1, 0.2], aggregated=[0.3, 0.4]),
        "participants": CellCurve(rounds=[1, 2], own=[0.5, 0.6], aggregated=[0.7, 0.8]),
    }
    both = measurements(cell(curves=curves)).of(MAIN, "fedmrl")
    assert curve_values(both, "fair")[1].tolist() == [pytest.approx([30, 40])]
    assert curve_values(both, "paper")[1].tolist() == [pytest.approx([50, 60])]
    assert curve_values(both, "own")[1].tolist() == [pytest.approx([10, 20])]
    alone = measurements(cell(variant="standalone", view="own", curves=curves)).of(MAIN, "standalone")
    assert curve_values(alone, "fair")[1].tolist() == [pytest.approx([10, 20])]


def test_seeds_are_drawn_where_all_have_a_value():
    curves = [{"all": CellCurve(rounds=rounds, own=[0.5] * len(rounds))} for rounds in ([1, 2, 3], [2, 3, 4])]
    both = measurements(*(cell(seed=seed, view="own", curves=c) for seed, c in enumerate(curves))).of(MAIN, "fedmrl")
    rounds, values = curve_values(both, "fair")
    assert rounds == [2, 3] and values.shape == (2, 2)


def test_the_papers_curve_is_smoothed_and_what_was_measured_is_faint():
    noisy = {"participants": CellCurve(rounds=list(range(1, 101)), own=[0.4, 0.6] * 50)}
    axes = curves_figure(measurements(cell(curves=noisy)), "paper").axes[0]
    raw, smooth = lines_of(axes, "fedmrl")
    assert raw.get_alpha() < 0.3 and np.ptp(raw.get_ydata()) == pytest.approx(20)
    assert np.ptp(smooth.get_ydata()[5:-5]) < 5


def test_a_running_mean_keeps_a_straight_line_straight():
    line = np.arange(9.0)
    assert running_mean(line, 5)[2:-2] == pytest.approx(line[2:-2])
    assert running_mean(line, 1) == pytest.approx(line)


def test_what_is_left_out_of_the_curves_is_said():
    figure = curves_figure(measurements(cell(), diverged(variant="fd"), diverged("cifar10-n50", "fml")), "fair")
    assert "Failed to converge: FD (CIFAR-10 N=100); FML (CIFAR-10 N=50)." in note(figure)
    assert "Not measured: CIFAR-10 N=100 (Standalone, LG-FedAvg, FedProto, FML, FedKD, FedAPEN)." in note(figure)
    assert texts(figure.axes[0]) == ["failed to converge"]


# Each client


def test_bars_are_sorted_and_coloured_by_who_does_better():
    ours, theirs = of_clients(0.5, 0.9, 0.7, 0.6), of_clients(0.6, 0.5, 0.6, 0.6)
    figure = clients_figure(measurements(cell(clients=ours), cell(variant="fedproto", clients=theirs)), "fair")
    axes = figure.axes[0]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([40, 10, 0, -10])
    assert [to_hex(bar.get_facecolor()) for bar in axes.patches][::3] == [STYLES[m].light for m in ("fedmrl", "fedproto")]
    assert texts(axes) == ["FedMRL better: 50% of clients\n(the paper: 87%)", "FedProto better: 25%, equal: 25%"]
    assert texts(figure.axes[1]) == ["not measured"]


def test_clients_of_the_same_split_are_averaged_over_seeds():
    ours = [cell(seed=0, clients=of_clients(0.5, 0.9)), cell(seed=1, clients=of_clients(0.7, 0.9))]
    theirs = [cell(variant="fedproto", seed=seed, clients=of_clients(0.5, 0.5)) for seed in (0, 1)]
    found = measurements(*ours, *theirs)
    gained = gains(found.of(MAIN, "fedmrl"), found.of(MAIN, "fedproto"))
    assert gained.points == pytest.approx([10, 40]) and gained.said == "mean over seeds 0, 1"


def test_clients_of_different_splits_are_those_of_the_first_seed():
    both = [
        cell(variant=method, seed=seed, clients=of_clients(value, 0.5, classes=(seed, 9)))
        for method, value in (("fedmrl", 0.6), ("fedproto", 0.5))
        for seed in (0, 1)
    ]
    found = measurements(*both)
    gained = gains(found.of(MAIN, "fedmrl"), found.of(MAIN, "fedproto"))
    assert gained.points == pytest.approx([10, 0])
    assert gained.said == "seed 0, since each seed has its own split; with seeds 0, 1, 50%, 50% of clients gain"


def test_clients_are_compared_only_with_themselves():
    a, b = cell(clients=of_clients(0.5)), cell(variant="fedproto", clients=of_clients(0.5, classes=(3, 4)))
    assert clients_figure(measurements(a, b), "fair") is None
    assert clients_figure(measurements(a, cell(variant="fedproto", seed=1, clients=of_clients(0.5))), "fair") is None


def test_clients_with_own_copies_have_a_figure_of_their_own():
    ours, theirs = of_clients(0.5, 0.9, own=(0.8, 0.5)), of_clients(0.6, 0.6)
    found = measurements(cell(clients=ours), cell(variant="fedproto", clients=theirs))
    bars = {p: [bar.get_height() for bar in clients_figure(found, p).axes[0].patches] for p in ("fair", "own")}
    assert bars["fair"] == pytest.approx([30, -10]) and bars["own"] == pytest.approx([20, -10])


# Costs


def test_costs_are_bars_with_their_numbers_or_a_word():
    cells = [
        cell(**reaching(0.9, 30, 2e6, 3e12)),
        cell(variant="standalone", **reaching(0.9, 60, 0, 4e12)),
        cell(variant="fedproto", **reaching(0.9, 50, 2e3, 5e12)),
        cell(variant="fml", **reaching(0.9)),
        diverged(variant="fd"),
    ]
    rounds, parameters, flops = costs_figure(measurements(*cells), "fair").axes[:3]
    words = ["60", "· not measured", "– failed", "50", "not reached", "· not measured", "· not measured", "30"]
    assert texts(rounds) == words
    assert [text for text in texts(parameters) if text[0].isdigit()] == ["0", "2 k", "2 M"]
    assert [bar.get_width() for bar in rounds.patches] == pytest.approx([60, 50, 30])
    assert [axes.get_xscale() for axes in (rounds, parameters, flops)] == ["linear", "log", "linear"]
    assert parameters.get_xlabel() == "parameters per client (log scale)"
    assert [label.get_text() for label in rounds.get_yticklabels()][-1] == "FedMRL"


def test_costs_have_no_panel_for_a_target_that_no_method_reached():
    both = [cell(variant=method, **reaching(0.86, 40, 2e6, 3e12)) for method in ("fedmrl", "fml")]
    figure = costs_figure(measurements(*both), "fair")
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes[::3]]
    assert titles == ["CIFAR-10, N=100, C=10%: until 85% accuracy"]
    assert "Reached by no measured method: 90% on CIFAR-10, 50% on CIFAR-100." in note(figure)
    assert costs_figure(measurements(cell(**reaching(0.9))), "fair") is None


def test_costs_as_the_paper_counts_are_the_participants():
    figure = costs_figure(measurements(cell(**reaching(0.9, 40, 2e6, 3e12, paper_rounds=20))), "paper")
    assert texts(figure.axes[0])[-1] == "20" and texts(figure.axes[1])[-1] == "10 M"


# Inference


def test_inference_shows_the_four_models_in_the_view_that_counts():
    modes = {"mix-large": 0.9, "mix-small": 0.8, "single-small": 0.5, "single-large": 0.6}
    found = measurements(
        cell(inference={"aggregated": modes, "own": dict.fromkeys(modes, 0.1)}), diverged("cifar100-n100", "fedmrl")
    )
    figure = inference_figure(found, "fair")
    axes = figure.axes[0]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([90, 80, 60, 50])
    assert [label.get_text() for label in axes.get_xticklabels()] == list(MODES)
    assert texts(axes) == ["90.0", "80.0", "60.0", "50.0"] and texts(figure.axes[1]) == ["failed to converge"]
    assert [bar.get_height() for bar in inference_figure(found, "own").axes[0].patches] == pytest.approx([10] * 4)


# What is varied


def drawn(axes, colour):
    """The points of each protocol's line of a colour."""
    lines = [c.lines[0] for c in axes.containers if c.lines[0].get_color() == colour]
    return [dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in lines]


def test_classes_are_varied_from_that_of_the_tables():
    cells = [cell(fair=0.8, paper=0.9), cell(f"{MAIN}-classes-4", fair=0.7, paper=0.75), cell(variant="fedproto", fair=0.6)]
    figure = sweep_figure(measurements(*cells), SWEEPS["non-iid-class"])
    fair, _, paper = drawn(figure.axes[0], STYLES["fedmrl"].light)
    assert list(fair) == [2, 4, 6, 8, 10] and [fair[2], fair[4]] == pytest.approx([80, 70]) and np.isnan(fair[6])
    assert [paper[2], paper[4]] == pytest.approx([90, 75])
    assert legend(figure) == ["FedMRL", "FedProto", "fair", "own", "paper"]
    assert "FedMRL (CIFAR-10 at 6, CIFAR-10 at 8, CIFAR-10 at 10)" in note(figure)


def test_a_setting_that_diverged_is_a_cross_and_a_note():
    cells = [cell(f"{MAIN}-dirichlet-0.1"), *(diverged(f"{MAIN}-dirichlet-0.1", "fedproto", seed) for seed in (0, 1))]
    figure = sweep_figure(measurements(*cells), SWEEPS["non-iid-dirichlet"])
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert {(line.get_xdata()[0], line.get_color()) for line in crosses} == {(0.1, STYLES["fedproto"].light)}
    assert "Failed to converge (×): FedProto (CIFAR-10 at 0.1)." in note(figure) and "CIFAR-10: seed 0." in note(figure)


def test_the_plain_run_stands_for_its_own_d1_alone():
    cells = [cell(fair=0.8), cell(variant="fedmrl-d1-150", fair=0.7), cell(variant="fedmrl-without-mrl-d1-100", fair=0.6)]
    with_mrl, *_ = drawn(sweep_figure(measurements(*cells), SWEEPS["d1"]).axes[0], STYLES["fedmrl"].light)
    assert [with_mrl[100], with_mrl[150]] == pytest.approx([80, 70]) and np.isnan(with_mrl[200])
    without, *_ = drawn(
        sweep_figure(measurements(*cells), SWEEPS["ablation"]).axes[0], SWEEPS["ablation"].lines["FedMRL without MRL"].light
    )
    assert without[100] == pytest.approx(60) and np.isnan(without[150])


def test_a_run_of_its_own_comes_before_the_plain_one():
    found = measurements(cell(fair=0.8), cell(variant="fedmrl-d1-100", fair=0.7))
    assert found.of_dim(MAIN, 100).mean("fair") == pytest.approx(70)


def test_a_sweep_is_over_the_seeds_that_all_its_points_have():
    cells = [cell(seed=seed, fair=fair) for seed, fair in enumerate((0.6, 0.9))]
    cells += [cell(f"{MAIN}-classes-4", fair=0.7), cell(f"{MAIN}-classes-6", seed=5, fair=0.7)]
    figure = sweep_figure(measurements(*cells), SWEEPS["non-iid-class"])
    fair, *_ = drawn(figure.axes[0], STYLES["fedmrl"].light)
    assert [fair[2], fair[4]] == pytest.approx([60, 70]) and np.isnan(fair[6])
    assert "CIFAR-10: seed 0." in note(figure) and "No seed in common with the others: FedMRL (CIFAR-10 at 6)." in note(figure)


def test_curves_and_costs_say_which_mean_is_over_fewer_seeds():
    cells = [cell(**reaching(0.9, 5)), cell(seed=1, **reaching(0.9, 5)), cell(variant="fml", **reaching(0.9, 5))]
    for figure in (curves_figure(measurements(*cells), "fair"), costs_figure(measurements(*cells), "fair")):
        assert "Over fewer seeds than others: FML (CIFAR-10 N=100: seed 0)." in note(figure)


def test_a_cell_of_another_recipe_is_not_drawn():
    assert curves_figure(measurements(cell(**OLD)), "fair") is None


def test_several_seeds_have_error_bars():
    figure = sweep_figure(measurements(cell(fair=0.7), cell(seed=1, fair=0.9)), SWEEPS["d1"])
    (bars,) = figure.axes[0].containers[0].lines[2]
    low, high = bars.get_segments()[0][:, 1]
    assert (high - low) / 2 == pytest.approx(100 * np.std([0.7, 0.9], ddof=1))
    assert "Error bars" in note(figure)


# All of them


@pytest.fixture(scope="module")
def whole():
    return {scale.name: Measurements(all_cells(scale), scale) for scale in (PAPER, QUICK)}


def written_in(figure):
    """The box of every text that can be seen."""
    figure.canvas.draw()
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    ticks = {label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for label in _unseen(axis)}
    return {text: text.get_window_extent() for text in texts if text not in ticks}


def _unseen(axis):
    """Labels of ticks outside the axis's limits, which are there but not drawn."""
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    outside = [tick for tick in ticks if not low <= tick.get_loc() <= high]
    return [label for tick in outside for label in (tick.label1, tick.label2)]


@pytest.mark.parametrize("scale", ["paper", "quick"])
@pytest.mark.parametrize("name", FIGURES)
def test_every_text_can_be_read(whole, name, scale):
    with rc_context(PRINT):
        figure = FIGURES[name](whole[scale])
        boxes = written_in(figure)
    paper = figure.bbox.padded(1)
    for text, box in boxes.items():
        assert paper.x0 <= box.x0 and box.x1 <= paper.x1 and paper.y0 <= box.y0 and box.y1 <= paper.y1, text.get_text()
    for (a, one), (b, other) in combinations(boxes.items(), 2):
        assert not one.padded(-1).overlaps(other.padded(-1)), f"{a.get_text()!r} and {b.get_text()!r}"


def test_a_reproduction_that_is_under_way_becomes_files(tmp_path):
    written = write_figures(all_cells(QUICK), QUICK, tmp_path)
    assert [path.name for path in written] == [f"{name}.{suffix}" for name in FIGURES for suffix in ("png", "svg", "pdf")]
    folder = tmp_path / "figures"
    svg = (folder / "curves.svg").read_text()
    assert "<!-- Digits, N=20, C=25% -->" in svg and "No runs with N=" in svg and "<text" not in svg
    pdf = (folder / "curves.pdf").read_bytes()
    assert b"/Type3" not in pdf and b"/FontFile2" in pdf  # TrueType, embedded: what a camera-ready paper has to have


def test_the_same_cells_make_the_same_files(tmp_path):
    cells = [cell()]
    for folder in ("a", "b"):
        write_figures(cells, PAPER, tmp_path / folder)
    for path in (tmp_path / "a" / "figures").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / "figures" / path.name).read_bytes(), path.name


def test_nothing_measured_is_no_figure(tmp_path):
    assert write_figures([], PAPER, tmp_path) == []
    assert write_figures([diverged()], QUICK, tmp_path) == []
    assert list(tmp_path.iterdir()) == []
