import numpy as np
import pytest
from PIL import Image

from fedmrl.report.figures import accuracy_figure, partition_figure
from fedmrl.report.looks import OTHERS


def is_a_picture(path):
    pixels = np.asarray(Image.open(path).convert("L"))
    return pixels.shape[0] > 300 and pixels.std() > 5


def test_a_comparison_becomes_a_picture(tmp_path):
    curves = {"A": [[(1, 0.1), (2, 0.5)], [(1, 0.2), (2, 0.6)]], "B": [[(1, 0.1), (2, 0.5)]], "diverged": []}
    looks = dict(zip(curves, OTHERS, strict=False))
    for suffix in ("png", "svg", "pdf"):
        accuracy_figure(curves, looks, "title", "subtitle", tmp_path / f"a.{suffix}")
    drawn = (tmp_path / "a.svg").read_text()
    assert is_a_picture(tmp_path / "a.png") and "A 55.0%" in drawn
    assert OTHERS[0].light in drawn and "<!-- 1.5 -->" not in drawn, "there is no round 1.5"


@pytest.mark.parametrize(("clients", "classes"), [(3, 2), (120, 100)])
def test_a_partition_becomes_a_picture(tmp_path, clients, classes):
    counts = np.random.default_rng(0).integers(0, 30, size=(clients, classes))
    partition_figure(counts, [str(c) for c in range(classes)], "title", tmp_path / "p.png")
    assert is_a_picture(tmp_path / "p.png")
