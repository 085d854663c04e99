import re
import zlib

import numpy as np
import pytest
from PIL import Image

from fedmrl.report.charts import Curve, HeatMap, heat_map, line_chart
from fedmrl.report.figures import COLUMN_WIDTH, accuracy_figure, column_figure, partition_figure
from fedmrl.report.styles import FALLBACK_STYLES


def is_a_picture(path):
    pixels = np.asarray(Image.open(path).convert("L"))
    return pixels.shape[0] > 300 and pixels.std() > 5


@pytest.fixture
def chart():
    curves = [
        Curve("A", FALLBACK_STYLES[0], [1, 2], np.array([[10.0, 50.0], [20.0, 60.0]])),
        Curve("B$x$", FALLBACK_STYLES[1], [1, 2], np.array([[10.0, 50.0]])),
    ]
    return line_chart(curves, "label", "round", "accuracy (%)")


def test_a_comparison_becomes_a_picture(chart, tmp_path):
    for suffix in ("png", "svg", "pdf"):
        accuracy_figure(chart, "title", "subtitle", tmp_path / f"a.{suffix}")
    drawn = (tmp_path / "a.svg").read_text()
    assert is_a_picture(tmp_path / "a.png") and "A 55.0\N{NO-BREAK SPACE}%" in drawn
    assert FALLBACK_STYLES[0].light in drawn and "<!-- 1.5 -->" not in drawn, "there is no round 1.5"
    assert all(f"<!-- {label} -->" in drawn for _, label in [*chart.x.ticks, *chart.y.ticks])


def test_a_figure_for_a_column_is_as_wide_as_one_and_embeds_its_letters(chart, tmp_path):
    for name in ("a.pdf", "b.pdf"):
        column_figure(chart, tmp_path / name)
    pdf = (tmp_path / "a.pdf").read_bytes()
    width = float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", pdf)[1])
    assert width == pytest.approx(72 * COLUMN_WIDTH) and b"/FontFile2" in pdf and b"/Type3" not in pdf
    streams = b"".join(zlib.decompress(part) for part in re.findall(rb"stream\r?\n(x.*?)\r?\nendstream", pdf, re.DOTALL))
    sizes = {float(size) for size in re.findall(rb"/F\d+ ([\d.]+) Tf", streams)}
    assert sizes and min(sizes) >= 7, "letters can be read"
    assert pdf == (tmp_path / "b.pdf").read_bytes()


@pytest.mark.parametrize(("clients", "classes"), [(3, 2), (120, 100)])
def test_a_partition_becomes_a_picture(tmp_path, clients, classes):
    counts = np.random.default_rng(0).integers(0, 30, size=(clients, classes))
    partition_figure(HeatMap(counts, [str(c) for c in range(classes)]), "title", tmp_path / "p.png")
    assert is_a_picture(tmp_path / "p.png")


def test_a_heat_map_has_its_colours_for_the_counts_that_there_are(tmp_path):
    heat = heat_map([{0: 40}, {0: 50, 1: 60}], ["a", "b"])
    assert (heat.low, heat.high) == (40, 60)
    assert heat.on_page()["counts"] == [[0, 40], [0, 50, 1, 60]]
    even = heat_map([{0: 5}], ["a", "b"])
    assert (even.low, even.high) == (5, 5)
    partition_figure(even, "title", tmp_path / "p.png")
    assert heat_map([{}], ["a"]).high == 1
