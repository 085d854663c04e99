"""The search ends in a table, and in what is to be chosen."""

import tomllib

from synthetic import cell, diverged

from fedmrl.reproduce.search import best_points, lines_of_chosen, page, points, results

SETTING = "cifar10-n100-search"


def tried(method, **accuracies):
    """Cells of all points of a method; None: it diverged."""
    values = {point: accuracies.get(point.replace("-", "_"), 0.5) for point in points(method)}
    return [
        diverged(SETTING, f"{method}+{point}") if value is None else cell(SETTING, f"{method}+{point}", fair=value)
        for point, value in values.items()
    ]


def test_every_point_has_a_row_with_its_accuracy_and_the_best_is_marked():
    rows = results(tried("fd", batch_128=0.7, plain_sgd=None))
    assert [row[2] for row in rows] == list(points("fd"))
    assert rows[0] == ("cifar10", "FD", "authors", "50.00 %", "")
    assert rows[1] == ("cifar10", "FD", "batch-128", "70.00 %", "best")
    assert rows[3] == ("cifar10", "FD", "plain-sgd", "diverged", "")
    assert "not measured" in {row[3] for row in results(tried("fd")[:2])}
    assert not results([])


def test_a_point_of_several_seeds_counts_by_their_mean_and_not_at_all_if_one_diverged():
    lucky = [cell(SETTING, "fd+authors", seed, fair=fair) for seed, fair in enumerate((0.9, 0.1))]
    half = [cell(SETTING, "fd+plain-sgd", 0, fair=0.99), diverged(SETTING, "fd+plain-sgd", 1)]
    steady = [cell(SETTING, "fd+batch-128", seed, fair=0.6) for seed in range(2)]
    assert best_points([*lucky, *half, *steady]) == {("cifar10", "fd"): "batch-128"}


def test_the_best_points_are_lines_of_chosen_toml_once_every_point_is_measured():
    cells = [*tried("fd", gamma_0_1=0.5, batch_128=0.7), *tried("standalone"), *tried("fml", labels_0=0.1)[:5]]
    assert tomllib.loads(lines_of_chosen(cells)) == {"cifar10": {"fd": {"training.batch_size": 128}, "standalone": {}}}


def test_the_page_has_the_table_and_the_lines():
    text = page(tried("fd", batch_128=0.7))
    assert "| cifar10 | FD | batch-128 | **70.00 %** |" in text
    assert '```toml\n[cifar10.fd]\n"training.batch_size" = 128\n```' in text
