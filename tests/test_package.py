"""The package as others get it: built, installed in an empty environment, alone and with each extra, and run there."""

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.package
ROOT = Path(__file__).resolve().parents[1]
QUICK = ["--set", "rounds=1", "--set", "clients=4", "--set", "participation=0.5"]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

IMAGES = """
import numpy as np
from pathlib import Path
from PIL import Image
for kind, level in (("dark", 40), ("light", 200)):
    Path("images", kind).mkdir(parents=True)
    for number in range(12):
        Image.fromarray(np.full((16, 16, 3), level + number, np.uint8)).save(f"images/{kind}/{number}.png")
"""
TABLE = """
import pandas
pandas.DataFrame({"age": range(40), "state": ["ill", "well"] * 20}).to_parquet("table.parquet")
"""
SMALL = [*QUICK, "--set", "models.local=[{hidden=[4]}]", "--set", "method.d1=2", "--set", "partition.classes_per_client=2"]
PRIVATE = [f"--set=privacy.{key}" for key in ("mode=central", "clip=1.0", "noise=1.0", "delta=0.01")]
PRIVATE += ["--set=method.weighting=uniform"]
WORKS = {
    "export": [["run", "quickstart", *QUICK, "--out", "r"], ["export", "r", "--client", "0", "--to", "m.onnx"]],
    "flower": [["demo", "federation", "--out", "demo"]],
    "images": [["python", "-c", IMAGES], ["run", "quickstart", *SMALL, "--data", "images"]],
    "privacy": [["run", "quickstart", *QUICK, *PRIVATE]],
    "ray": [["run", "quickstart", *QUICK, "--engine", "ray"]],
    "tables": [["python", "-c", TABLE], ["run", "quickstart", *SMALL, "--data", "table.parquet", "--label", "state"]],
    "tensorboard": [["run", "quickstart", *QUICK, "--tensorboard", "board"]],
}
"""Commands that need an extra."""
COMES_ANYWAY = {"images"}  # Matplotlib needs Pillow, too


class Environment:
    """A virtual environment."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.bin = folder / "bin"
        self.packages = next(folder.glob("lib/python*/site-packages"))

    def run(self, folder: Path, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs one of its programs in a folder."""
        alone = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        # An environment that has the package from another one has no program of its own for it.
        start = [self.bin / program] if program != "fedmrl" else [self.bin / "python", "-m", "fedmrl"]
        command = [*start, *map(str, arguments)]
        return subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True, check=False, timeout=900)

    def install(self, what: str) -> None:
        """Installs a requirement, of the versions that this one is tested with."""
        asked = ["install", "--quiet", "--disable-pip-version-check", "--constraint", ROOT / "constraints.txt", what]
        done = self.run(self.bin, "pip", *asked)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel, built from the source distribution."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", out, ROOT], check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="session")
def plain(wheel, tmp_path_factory):
    """An environment with the wheel and what it needs, no more."""
    made = Environment(tmp_path_factory.mktemp("plain"))
    made.install(str(wheel))
    return made


def test_the_wheel_has_its_recipes_and_types_and_nothing_else_of_the_repository(plain):
    inside = {path.relative_to(plain.packages / "fedmrl").as_posix() for path in (plain.packages / "fedmrl").rglob("*")}
    assert {"py.typed", "recipes/quickstart.toml", "recipes/paper/cifar10-n100.toml"} <= inside
    assert not {"tests", "results", "benchmarks", "docs"} & {path.name for path in plain.packages.iterdir()}


def test_the_quickstart_runs_in_an_empty_environment(plain, tmp_path):
    done = plain.run(tmp_path, "fedmrl", "compare", "quickstart", *QUICK, "--methods", "fedmrl,standalone", "--out", "c")
    assert done.returncode == 0, done.stderr
    done = plain.run(tmp_path, "fedmrl", "report", "c")
    assert done.returncode == 0 and (tmp_path / "c" / "report.html").exists(), done.stderr
    for name in ("m.pt2", "m.safetensors"):
        done = plain.run(tmp_path, "fedmrl", "export", "c/fedmrl", "--client", "1", "--to", name)
        assert done.returncode == 0 and (tmp_path / name).exists(), done.stderr
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 3, 32, 32), np.uint8))
    done = plain.run(tmp_path, "fedmrl", "predict", "c/fedmrl", "--client", "1", "new.npz")
    assert done.returncode == 0 and done.stdout.startswith("class,p(0),") and done.stdout.count("\n") == 3, done.stderr


def test_every_extra_has_a_command_that_needs_it():
    assert WORKS.keys() == EXTRAS.keys() - {"dev"}


@pytest.mark.parametrize("extra", sorted(WORKS))
def test_an_extra_alone_is_named_where_it_is_missing_and_works_once_it_is_there(plain, wheel, tmp_path_factory, extra):
    made, (*before, last) = Environment(tmp_path_factory.mktemp(extra)), WORKS[extra]
    (made.packages / "plain.pth").write_text(f"{plain.packages}\n")  # has what the plain environment has
    made.install(f"fedmrl[{extra}] @ file://{wheel}")
    work = tmp_path_factory.mktemp(f"{extra}-work")
    for command in before:
        done = made.run(work, *(command if command[0] == "python" else ["fedmrl", *command]))
        assert done.returncode == 0, done.stderr
    if extra not in COMES_ANYWAY:
        missing = plain.run(work, "fedmrl", *last)
        assert missing.returncode == 2 and f"fedmrl[{extra}]" in missing.stderr, missing.stderr
        assert "Traceback" not in missing.stderr
    done = made.run(work, "fedmrl", *last)
    assert done.returncode == 0, done.stderr
