import csv
import re

import pytest
from synthetic import OLD, all_cells, cell, diverged, reaching

from fedmrl.report.grid import Entry, Grid, to_latex, to_markdown
from fedmrl.reproduce.claims import CLAIMS, claims_table
from fedmrl.reproduce.experiments import PAPER, QUICK
from fedmrl.reproduce.measurements import Measurements
from fedmrl.reproduce.standings import standing
from fedmrl.reproduce.tables import accuracy_grid, cost_grid, difference_grids, write_tables

MAIN = "cifar10-n100"


def entry(grid, row, column):
    """What stands where, such as ("FedMRL", 2): the third column, CIFAR-10 with N=100."""
    return next(entries[column] for group in grid.groups for name, entries in group if name == row)


def accuracies(cells, protocol="fair", scale=PAPER):
    return accuracy_grid(Measurements(cells, scale), "heterogeneous", protocol)


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


# Accuracy


def test_several_seeds_have_a_spread_and_one_has_none():
    grid = accuracies([cell(fair=0.8), cell(seed=1, fair=0.9), cell(variant="fml", fair=0.5)])
    assert entry(grid, "FedMRL", 2).text == "85.00 ± 7.07"
    assert entry(grid, "FML", 2).text == "50.00"
    assert any("sample standard deviation" in note for note in grid.notes)


def test_who_is_best_is_judged_pair_by_pair_over_the_seeds_that_both_have(tmp_path):
    cells = [cell(seed=seed, fair=fair) for seed, fair in enumerate((0.8, 0.9, 0.9))]
    cells += [cell(variant="fedproto", fair=0.85), cell(variant="fml", seed=5, fair=0.99)]
    grid = accuracies(cells)
    assert entry(grid, "FedProto", 2) == Entry("85.00", "best", seeds="seed 0")
    assert entry(grid, "FedMRL", 2) == Entry("86.67 ± 5.77", "second", seeds="seeds 0, 1, 2")
    assert entry(grid, "FML", 2) == Entry("99.00", seeds="seed 5")
    assert entry(grid, "FedMRL − best baseline", 2) == Entry("−5.00*", seeds="seed 0")
    assert "Not compared, since they share no seed with most others: FML (CIFAR-10 N=100)." in grid.notes
    assert "**85.00** [seed 0]" in to_markdown("t", [grid]) and r"\textbf{85.00}\,{\scriptsize[seed 0]}" in to_latex(
        "t", "t", [grid]
    )
    place = standing(measurements := Measurements(cells, PAPER), measurements.main("cifar10"), "fair")
    assert (place.rank, place.of, place.first) == (2, 2, False)
    write_tables(cells, PAPER, tmp_path)
    rows = rows_of(tmp_path / "tables" / "table-hetero.csv")
    here = {r["row"]: r for r in rows if (r["dataset"], r["federation"], r["protocol"]) == ("cifar10", "n100", "fair")}
    assert here["fedmrl-minus-best-baseline"]["compared_over"] == "0" and here["fedmrl"]["seeds"] == "0 1 2"


def test_one_that_diverged_takes_no_seed_from_the_others():
    cells = [cell(variant=method, seed=seed, fair=0.8) for method in ("fedmrl", "fml") for seed in range(3)]
    assert entry(accuracies([*cells, diverged(variant="fd")]), "FML", 2) == Entry("80.00 ± 0.00", "best")


def test_a_cell_of_another_recipe_is_left_out_and_named():
    grid = accuracies([cell(fair=0.8), cell(seed=1, fair=0.9, **OLD), cell(variant="fml", **OLD)])
    assert entry(grid, "FedMRL", 2).text == "80.00" and entry(grid, "FML", 2).text == "·"
    names = "cifar10-n100/fedmrl (seed 1), cifar10-n100/fml (seed 0)"
    assert f"Left out, since their recipe differs from this version's: {names}." in grid.notes


def test_each_protocol_has_its_own_number():
    cells = [cell(fair=0.8, paper=0.9)]
    assert entry(accuracies(cells, "fair"), "FedMRL", 2).text == "80.00"
    assert entry(accuracies(cells, "paper"), "FedMRL", 2).text == "90.00"


def test_the_papers_number_stands_beside_ours_under_its_own_protocol_alone():
    cells = [cell(paper=0.94)]
    assert entry(accuracies(cells, "paper"), "FedMRL", 2).aside == "95.85"
    assert entry(accuracies(cells, "paper"), "FD", 2).aside == "–"
    assert entry(accuracies(cells, "fair"), "FedMRL", 2).aside == ""
    assert "94.00** (**95.85**)" in to_markdown("t", [accuracies(cells, "paper")])
    quick = accuracies([cell("digits-n20", paper=0.94)], "paper", QUICK)
    assert not any(e.aside for group in quick.groups for _, entries in group for e in entries)


def test_margins_are_to_the_best_of_all_and_of_the_same_category():
    baselines = {"standalone": 0.7, "lg-fedavg": 0.6, "fd": 0.5, "fedproto": 0.75, "fml": 0.61, "fedkd": 0.62, "fedapen": 0.4}
    cells = [cell(fair=0.8, paper=0.9), *(cell(variant=m, fair=a, paper=a + 0.1) for m, a in baselines.items())]
    fair, paper = accuracies(cells, "fair"), accuracies(cells, "paper")
    assert entry(fair, "FedMRL − best baseline", 2) == Entry("+5.00")
    assert entry(fair, "FedMRL − best same-category baseline", 2) == Entry("+18.00")
    # The paper: 95.85 − 92.49 (FedProto) and 95.85 − 73.21 (FedKD).
    assert entry(paper, "FedMRL − best baseline", 2) == Entry("+5.00", aside="+3.36")
    assert entry(paper, "FedMRL − best same-category baseline", 2) == Entry("+18.00", aside="+22.64")


def test_a_margin_that_is_negative_says_so():
    assert entry(accuracies([cell(fair=0.5), cell(variant="fml", fair=0.6)]), "FedMRL − best baseline", 2).text == "−10.00*"


def test_best_is_bold_and_second_underlined():
    cells = [cell(fair=0.8), cell(variant="fml", fair=0.7), cell(variant="fedkd", fair=0.6)]
    text = to_latex("t", "t", [accuracies(cells)])
    assert r"\textbf{80.00}" in text and r"\underline{70.00}" in text and r"{60.00}" not in text
    assert "second underlined" in text and "italic" not in text


def test_two_that_are_best_leave_no_second():
    grid = accuracies([cell(fair=0.8), cell(variant="fml", fair=0.8), cell(variant="fedkd", fair=0.6)])
    assert [entry(grid, name, 2).mark for name in ("FedMRL", "FML", "FedKD")] == ["best", "best", ""]


def test_what_is_missing_is_a_dot_and_makes_a_margin_provisional():
    grid = accuracies([cell(fair=0.8), cell(variant="fml", fair=0.6)])
    assert entry(grid, "FedKD", 2).text == "·" and entry(grid, "FedMRL", 0).text == "·"
    assert entry(grid, "FedMRL − best baseline", 2).text == "+20.00*"
    assert entry(grid, "FedMRL − best baseline", 0).text == "·"
    assert any("not measured" in note for note in grid.notes) and any(note.startswith("*") for note in grid.notes)


def test_what_failed_to_converge_is_a_dash_and_a_note_and_no_rival():
    cells = [cell(fair=0.8), cell(variant="fml", fair=0.6), diverged(variant="fd", at=7)]
    grid = accuracies(cells)
    assert entry(grid, "FD", 2).text == "–"
    failed = "– failed to converge (not finite, or no better than chance): FD (CIFAR-10 N=100 in round 7)."
    assert failed in grid.notes
    assert entry(grid, "FedMRL − best baseline", 2).text == "+20.00*"


def test_one_seed_that_diverged_is_not_hidden_by_those_that_did_not(tmp_path):
    cells = [cell(variant="fd", fair=0.6), diverged(variant="fd", seed=1), cell(variant="fd", seed=2, fair=0.8)]
    grid = accuracies(cells)
    assert entry(grid, "FD", 2).text == "–"
    assert any(note.endswith("FD (CIFAR-10 N=100 in round 12 with 1 of 3 seeds).") for note in grid.notes)
    write_tables(cells, PAPER, tmp_path)
    rows = rows_of(tmp_path / "tables" / "table-hetero.csv")
    row = next(r for r in rows if (r["row"], r["federation"], r["dataset"], r["protocol"]) == ("fd", "n100", "cifar10", "fair"))
    assert (row["status"], row["seeds"], row["accuracy"], row["by_seed"]) == ("failed", "0 1 2", "", "60.0 80.0")


def test_a_diverged_fedmrl_has_no_margin():
    grid = accuracies([diverged(variant="fedmrl"), cell(variant="fml", fair=0.6)])
    assert entry(grid, "FedMRL − best baseline", 2).text == "–"


def test_columns_say_how_many_clients_there_are_and_take_part():
    grid = accuracies([cell()])
    assert grid.header[0] == [("CIFAR-10", 3), ("CIFAR-100", 3)]
    assert grid.header[1][2] == ("N=100, C=10%", 1) and grid.header[1][0] == ("N=10", 1)  # where no run says who takes part


def test_csv_has_the_numbers_as_they_were_measured(tmp_path):
    write_tables([cell(fair=1 / 3), cell(variant="fml", fair=0.25)], PAPER, tmp_path)
    rows = rows_of(tmp_path / "tables" / "table-hetero.csv")
    here = {r["row"]: r for r in rows if (r["dataset"], r["federation"], r["protocol"]) == ("cifar10", "n100", "fair")}
    assert float(here["fedmrl"]["accuracy"]) == 100 * (1 / 3) and here["fedmrl"]["deviation"] == ""
    assert float(here["fedmrl-minus-best-baseline"]["accuracy"]) == pytest.approx(100 / 3 - 25)
    assert here["fedmrl-minus-best-baseline"]["against"] == "fml" and here["fedkd"]["status"] == "missing"
    printed = next(r for r in rows if (r["row"], r["federation"], r["protocol"]) == ("fedmrl", "n100", "paper"))
    assert printed["paper"] == "95.85"


# Difference


def test_difference_is_ours_minus_the_papers():
    cells = [cell(paper=0.95), cell(variant="fedproto", paper=0.93), cell(variant="fml", paper=0.8), diverged(variant="fd")]
    grid = difference_grids(Measurements(cells, PAPER))[0]
    assert entry(grid, "FedMRL", 2).text == "−0.85" and entry(grid, "FedProto", 2).text == "+0.51"
    assert entry(grid, "FML", 2).text == "80.00†"  # of which the paper says that it failed to converge
    assert entry(grid, "FD", 2).text == "–" and entry(grid, "FedKD", 2).text == "·"
    assert "Mean absolute difference 0.68 points over 2 numbers; ours is higher in 1." in grid.notes


def test_rank_counts_those_that_are_better_and_those_that_diverged_as_worse():
    cells = [
        cell(fair=0.7),
        cell(variant="fedproto", fair=0.75),
        cell(variant="fml", fair=0.6),
        cell(variant="fedkd", fair=0.7),
        diverged(variant="fd"),
    ]
    measurements = Measurements(cells, PAPER)
    found = standing(measurements, measurements.main("cifar10"), "fair")
    assert (found.rank, found.of, found.margin.against) == (2, 5, "fedproto")
    assert found.margin.points == pytest.approx(-5)
    row = next(entries for name, entries in difference_grids(measurements)[-2].groups[0] if name == "CIFAR-10, N=100, C=10%")
    assert [e.text for e in row] == ["heterogeneous", "70.00", "FedProto", "−5.00*", "2 of 5"]


def test_a_small_reproduction_is_not_held_against_the_paper(tmp_path):
    write_tables(all_cells(QUICK), QUICK, tmp_path)
    assert "minus the paper" not in (tmp_path / "tables" / "difference.md").read_text()
    assert len(difference_grids(Measurements(all_cells(QUICK), QUICK))) == 2, "under fair and under own"


# Costs


def costs(cells, protocol="fair", place=0):
    return cost_grid(Measurements(cells, PAPER), protocol, place)


def test_costs_are_counted_both_ways():
    cells = [cell(**reaching(0.9, 40, 2e6, 3e12, paper_rounds=20))]
    assert [entry(costs(cells, "fair"), "FedMRL", i).text for i in range(3)] == ["40", "2 M", "3 T"]
    assert [entry(costs(cells, "paper"), "FedMRL", i).text for i in range(3)] == ["20", "10 M", "15 T"]


def test_a_target_may_be_reached_by_none_or_by_some_seeds():
    never, once = reaching(0.9), reaching(0.9, 30, parameters=5e3, flops=1e9)
    cells = [
        cell(**never),
        cell(seed=1, **never),
        cell(variant="fml", **once),
        cell(variant="fml", seed=1, **never),
        diverged(variant="fd"),
    ]
    grid = costs(cells)
    assert entry(grid, "FedMRL", 0).text == "not reached" and entry(grid, "FML", 0).text == "30 (1/2)"
    assert entry(grid, "FD", 0).text == "–" and entry(grid, "FedKD", 0).text == "·"
    assert all(e.mark == "" for group in grid.groups for _, entries in group for e in entries)


def test_the_least_cost_is_best_and_seeds_have_a_spread():
    cells = [
        cell(**reaching(0.9, 10, 1e6, 1e9)),
        cell(seed=1, **reaching(0.9, 20, 3e6, 1e9)),
        *(cell(variant="standalone", seed=s, **reaching(0.9, 40, 0, 1e8)) for s in (0, 1)),
    ]
    grid = costs(cells)
    assert entry(grid, "FedMRL", 0) == Entry("15 ± 7", "best") and entry(grid, "FedMRL", 1) == Entry("2 M ± 1.41 M", "second")
    assert entry(grid, "Standalone", 1) == Entry("0", "best")
    fewer = costs([*cells[:3], cell(variant="fml", **reaching(0.9, 12))])
    assert entry(fewer, "FML", 0) == Entry("12", "second", seeds="seed 0"), "with seed 0 FedMRL takes 10"


def test_costs_as_csv_have_a_row_for_each_seed(tmp_path):
    cells = [cell(**reaching(0.9, 10, 1e6, 1e9)), cell(seed=1, **reaching(0.9)), cell(variant="fml", **reaching(0.9, 9))]
    write_tables(cells, PAPER, tmp_path)
    rows = rows_of(tmp_path / "tables" / "costs.csv")
    ours = [r for r in rows if (r["method"], r["dataset"], r["protocol"]) == ("fedmrl", "cifar10", "fair")]
    assert [(r["seed"], r["reached"], r["rounds"]) for r in ours] == [("0", "True", "10.0"), ("1", "False", "")]


def test_where_few_reach_the_papers_target_another_that_most_reach_is_counted_too():
    methods = {"fedmrl": 0.91, "standalone": 0.84, "fml": 0.83, "fedkd": 0.7}
    cells = [cell(variant=method, **reaching(value, 5, 1e6, 1e9)) for method, value in methods.items()]
    assert Measurements(cells, PAPER).targets("cifar10") == [0.9, 0.8]
    assert costs(cells).header[0] == [("CIFAR-10, 90%", 3), ("CIFAR-100, 50%", 3)]
    common = costs(cells, place=1)
    assert common.header[0] == [("CIFAR-10, 80%", 3)] and common.caption.startswith("A target that most methods reach.")
    assert [entry(common, name, 0).text for name in ("FedMRL", "Standalone", "FedKD")] == ["5", "5", "not reached"]
    all_reach = [cell(variant=method, **reaching(0.9, 5)) for method in methods]
    assert Measurements(all_reach, PAPER).targets("cifar10") == [0.9] and costs(all_reach, place=1) is None


# Claims


def claim(cells, title, scale=PAPER):
    """The row of a claim: what the paper says, ours under fair, own and paper, whether it holds."""
    lines = claims_table(Measurements(cells, scale)).splitlines()
    return next(line.strip("| ").split(" | ")[1:] for line in lines if line.startswith(f"| {title} "))


def test_each_claim_stands_beside_what_was_measured_under_each_protocol():
    cells = [cell(fair=0.8, own=0.74, paper=0.9), cell(variant="fedproto", fair=0.75, paper=0.95)]
    says, fair, own, paper, holds = claim(cells, "Ahead of the others")
    assert says.startswith("By up to 8.48 points ahead")
    assert paper == "−5.0 (points against FedProto, CIFAR-10 N=100, one seed; the paper: +3.36)"
    assert fair == "+5.0 (points against FedProto, CIFAR-10 N=100, one seed)"
    assert own == "−1.0 (points against FedProto, CIFAR-10 N=100, one seed)"
    both = "own: so far: does not hold; paper: so far: does not hold"
    assert holds == f"fair: so far: holds; {both}"
    assert claim(cells, "Matryoshka helps")[1:] == ["not measured"] * 4
    assert claim(cells, "Most clients gain")[3] == "–", "the paper's protocol does not look at all clients"


def test_a_whole_reproduction_has_a_verdict_on_every_claim(tmp_path):
    write_tables(all_cells(PAPER), PAPER, tmp_path)
    rows = [row for row in (tmp_path / "tables" / "claims.md").read_text().splitlines() if row.startswith("|")]
    assert len(rows) == 2 + len(CLAIMS) and not [row for row in rows if "so far" in row or "not measured" in row]


# Files


def cells_in(line):
    """How many columns a row of a tabular takes."""
    spans = sum(int(span) - 1 for span in re.findall(r"\\multicolumn\{(\d+)\}", line))
    return len(re.split(r"(?<!\\)&", line)) + spans


@pytest.mark.parametrize("scale", [PAPER, QUICK], ids=lambda scale: scale.name)
def test_latex_is_whole(tmp_path, scale):
    write_tables(all_cells(scale), scale, tmp_path)
    for path in (tmp_path / "tables").glob("*.tex"):
        text = path.read_text()
        bare = re.sub(r"\\[{}]", "", text)
        assert bare.count("{") == bare.count("}")
        assert sorted(re.findall(r"\\begin\{(\w+)\}", text)) == sorted(re.findall(r"\\end\{(\w+)\}", text))
        assert not re.search(r"(?<!\\)[%#_]", text.partition("\n")[2]) and text.isascii()
        assert text.count("$") % 2 == 0
        for tabular in re.findall(r"\\begin\{tabular\}\{@\{\}(l?c+)@\{\}\}(.*?)\\end\{tabular\}", text, re.DOTALL):
            lines = [line for line in tabular[1].splitlines() if line.endswith(r"\\")]
            assert len(lines) >= 4 and {cells_in(line) for line in lines} == {len(tabular[0])}


@pytest.mark.parametrize("scale", [PAPER, QUICK], ids=lambda scale: scale.name)
def test_markdown_has_as_many_columns_in_every_row(tmp_path, scale):
    write_tables(all_cells(scale), scale, tmp_path)
    for path in (tmp_path / "tables").glob("*.md"):
        for table in re.findall(r"(?:^\|.*\n)+", path.read_text(), re.MULTILINE):
            assert len({line.count("|") for line in table.splitlines()}) == 1


def test_whatever_a_text_has_latex_can_print_it():
    grid = Grid("50% of A&B_{C}", "x", [[("#1 ~ ^2 \\", 1)]], [[("a", [Entry("5 ± 1 < 6")])]])
    text = to_latex("t", "t", [grid])
    assert r"50\% of A\&B\_\{C\}" in text and r"\#1 \textasciitilde{} \textasciicircum{}2 \textbackslash{}" in text


def test_only_what_was_measured_is_written(tmp_path):
    assert write_tables([], PAPER, tmp_path) == []
    names = {path.name for path in write_tables([cell("cifar10-n10-homogeneous")], PAPER, tmp_path)}
    tables = {f"{name}.{suffix}" for name in ("table-homo", "difference") for suffix in ("md", "tex", "csv")}
    assert names == tables | {"claims.md"}
    written = write_tables(all_cells(PAPER), PAPER, tmp_path)
    assert len(written) == 13 and all(path.is_file() for path in written)


def test_each_table_is_a_latex_float_of_its_own_and_a_wide_one_spans_both_columns():
    narrow = Grid("narrow", "m", [[("a", 1)]], [[("x", [Entry("1")])]])
    wide = Grid("wide", "m", [[(name, 1) for name in "abcdef"]], [[("x", [Entry("1")] * 6)]])
    text = to_latex("t", "both", [narrow, wide])
    assert [line for line in text.splitlines() if line.startswith(r"\begin{table")] == [
        r"\begin{table}[t]",
        r"\begin{table*}[t]",
    ]
    assert r"\caption{t. narrow.}" in text and r"\label{tab:both-1}" in text and r"\label{tab:both-2}" in text
