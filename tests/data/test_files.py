"""Files of one's own: .npz, tables and image folders, whole or one for each client, which can be run again and resumed."""

import json
import tomllib

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

import fedmrl
from fedmrl import UserError
from fedmrl.cli import app
from fedmrl.config import load_recipe
from fedmrl.config.starter import starter
from fedmrl.data import Files
from fedmrl.data.sources import load
from fedmrl.federation.folder import inputs

RNG = np.random.default_rng(0)
LOCAL = "models.local=[{hidden=[6]}]"


def write_npz(path, samples=40, names=False):
    y = np.arange(samples) % 2
    x = RNG.normal(size=(samples, 5)) + y[:, None]
    np.savez(path, x=x.astype(np.float32), y=np.array(["no", "yes"])[y] if names else y)
    return path


def write_tokens(path):
    y = np.arange(40) % 2
    np.savez(path, x=RNG.integers(0, 20, (40, 6)), y=y)
    return path


def write_csv(path):
    y = np.arange(40) % 2
    frame = pd.DataFrame(RNG.normal(size=(40, 3)) + y[:, None], columns=["a", "b", "c"])
    frame.assign(state=np.array(["ill", "well"])[y]).to_csv(path, index=False)
    return path


def write_parquet(path):
    pd.read_csv(write_csv(path.with_suffix(".csv"))).to_parquet(path)
    return path


def write_images(path, size=(20, 18), suffix="png", grey=False):
    for label in ("cat", "dog"):
        (path / label).mkdir(parents=True)
        for number in range(20):
            shape = size if grey else (*size, 3)
            pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(pixels).save(path / label / f"{number:02d}.{suffix}")
    return path


KINDS = {
    ".npz": (lambda folder, n: write_npz(folder / f"{n}.npz"), None),
    ".npz with words": (lambda folder, n: write_npz(folder / f"{n}.npz", names=True), None),
    "tokens": (lambda folder, n: write_tokens(folder / f"{n}.npz"), None),
    "CSV": (lambda folder, n: write_csv(folder / f"{n}.csv"), "state"),
    "Parquet": (lambda folder, n: write_parquet(folder / f"{n}.parquet"), "state"),
    "images": (lambda folder, n: write_images(folder / n), None),
}


def called(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("several", [False, True], ids=["whole", "one for each client"])
def test_init_writes_a_recipe_that_fits_and_that_runs(tmp_path, monkeypatch, kind, several):
    monkeypatch.chdir(tmp_path)
    write, label = KINDS[kind]
    files = [write(tmp_path, name) for name in (("north", "south") if several else ("north",))]
    asked = called("init", *files, *(["--label", label] if label else []), "--out", "own.toml")
    assert asked.exit_code == 0, asked.output
    recipe = tomllib.loads((tmp_path / "own.toml").read_text())
    assert recipe["data"]["files"] == [file.name for file in files] and recipe["clients"] == 2
    ran = called("run", "own.toml", "--set", "rounds=1", "--set", "training.epochs=1", "--out", "run")
    assert ran.exit_code == 0, ran.output
    first = fedmrl.RunResult.read("run")
    assert fedmrl.run("run").states_sha256 == first.states_sha256


@pytest.mark.parametrize("kind", ["CSV", ".npz with words"])
@pytest.mark.parametrize("several", [False, True], ids=["whole", "one for each client"])
def test_run_and_compare_take_files_beside_a_recipe(tmp_path, kind, several):
    write, label = KINDS[kind]
    files = [write(tmp_path, name) for name in (("north", "south") if several else ("north",))]
    given = [word for file in files for word in ("--data", file)] + (["--label", label] if label else [])
    changes = ["rounds=1", LOCAL, "participation=1.0", *([] if several else ["clients=2", "partition.kind=iid"])]
    options = [word for change in changes for word in ("--set", change)]
    ran = called("run", "quickstart", *given, *options, "--set", "method.name=standalone", "--out", tmp_path / "run")
    assert ran.exit_code == 0, ran.output
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["clients"] == 2 and config["partition"]["kind"] == ("own" if several else "iid")
    compared = called("compare", "quickstart", *given, *options, "--methods", "standalone,fd", "--out", tmp_path / "both")
    assert compared.exit_code == 0, compared.output
    (tmp_path / "run" / "summary.json").unlink()
    again = called("run", tmp_path / "run", "--resume")
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize("kind", ["CSV", "images"])
def test_a_run_is_not_resumed_on_changed_files(tmp_path, kind):
    write, label = KINDS[kind]
    path = write(tmp_path, "north")
    settings = {"rounds": 1, "clients": 2, "partition.kind": "iid", "models.local": [{"hidden": [4]}], "participation": 1.0}
    fedmrl.run("quickstart", data=path, label=label, method="standalone", settings=settings, out=tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    if path.is_dir():
        Image.fromarray(np.zeros((20, 18, 3), np.uint8)).save(path / "cat" / "00.png")
    else:
        path.write_text(path.read_text().replace("ill", "bad"))
    with pytest.raises(UserError, match=r"the file that data.files\[0\] names has changed"):
        fedmrl.run(tmp_path / "run", out=tmp_path / "run", resume=True)


def test_a_runs_folder_names_the_files_so_that_it_can_be_run_again(tmp_path):
    files = [write_csv(tmp_path / f"{name}.csv") for name in ("a", "b")]
    given = {"rounds": 1, "models.local": [{"hidden": [4]}]}
    first = fedmrl.run("quickstart", data=files, label="state", method="standalone", settings=given, out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "inputs.json").read_text()).keys() == {"data.files[0]", "data.files[1]"}
    assert fedmrl.run(tmp_path / "run").states_sha256 == first.states_sha256


def test_images_are_bytes_with_the_folders_as_classes(tmp_path):
    data = load(Files(files=[str(write_images(tmp_path / "i"))]))
    assert data.x.shape == (40, 3, 20, 18) and data.x.dtype == np.uint8 and data.classes == ("cat", "dog")
    first = np.asarray(Image.open(tmp_path / "i" / "cat" / "00.png"))
    assert np.array_equal(data.x[0], np.moveaxis(first, -1, 0))
    assert np.array_equal(data.preparation.features(tmp_path / "i"), data.x)
    assert np.array_equal(data.preparation.features(tmp_path / "i" / "cat" / "00.png"), data.x[:1])


def test_images_of_more_than_8_bits_are_refused_as_bytes_would_lose_what_they_show(tmp_path):
    path = write_images(tmp_path / "i")
    Image.fromarray(np.full((20, 18), 40_000, np.uint16)).save(path / "cat" / "00.png")
    with pytest.raises(UserError, match=r"00.png has more than 8 bits for each pixel; give such images as arrays"):
        load(Files(files=[str(path)]))


def test_a_grey_image_is_taken_by_a_model_of_coloured_ones(tmp_path):
    prepared = load(Files(files=[str(write_images(tmp_path / "c"))])).preparation
    grey = write_images(tmp_path / "g", grey=True) / "cat" / "00.png"
    assert prepared.features(grey).shape == (1, 3, 20, 18)


def test_grey_images_have_one_channel_and_jpegs_are_read(tmp_path):
    assert load(Files(files=[str(write_images(tmp_path / "g", grey=True))])).x.shape == (40, 1, 20, 18)
    assert load(Files(files=[str(write_images(tmp_path / "j", suffix="jpg"))])).x.shape == (40, 3, 20, 18)


def test_images_of_other_sizes_are_scaled_if_asked_and_else_refused(tmp_path):
    path = write_images(tmp_path / "i")
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(path / "dog" / "99.png")
    with pytest.raises(
        UserError, match=r"99.png has 9×9 pixels, and 00.png 20×18; set data.size = .height, width. to scale all"
    ):
        load(Files(files=[str(path)]))
    with pytest.raises(UserError, match=r"'fedmrl init': --size 32x32"):
        called("init", path, "--out", tmp_path / "i.toml")
    data = load(Files(files=[str(path)], size=[16, 24]))
    assert data.x.shape == (41, 3, 16, 24) and data.preparation.resize
    assert data.preparation.features(path / "dog" / "99.png").shape == (1, 3, 16, 24)


def test_an_image_folder_may_have_a_test_set(tmp_path):
    write_images(tmp_path / "i" / "train")
    write_images(tmp_path / "i" / "test")
    data = load(Files(files=[str(tmp_path / "i")]))
    assert data.official_train == 40 and len(data.y) == 80


@pytest.mark.parametrize("name", ["validation", "valid", "val"])
def test_a_test_set_of_an_image_folder_is_called_as_one_of_a_mapping(tmp_path, name):
    write_images(tmp_path / "i" / "train")
    write_images(tmp_path / "i" / name)
    data = load(Files(files=[str(tmp_path / "i")], size=[8, 8]))
    assert data.official_train == 40 and len(data.y) == 80 and data.own_test and data.preparation.resize
    write_images(tmp_path / "i" / "test")
    (line,) = load(Files(files=[str(tmp_path / "i")])).notices
    assert line.endswith(f"[{name!r}] is not used, as 'test' is the test set")


def test_a_run_is_resumed_when_files_that_are_not_read_have_changed(tmp_path):
    path = write_images(tmp_path / "i" / "train").parent
    write_images(path / "test")
    before = inputs(load_recipe("quickstart", {"data.name": "files", "data.files": [str(path)]}))
    for name in ("notes.txt", "train/cat/notes.txt", ".cache/a.png", "train/.cache/a.png", "train/cat/._00.png"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("no image")
    assert inputs(load_recipe("quickstart", {"data.name": "files", "data.files": [str(path)]})) == before
    assert len(load(Files(files=[str(path)])).y) == 80
    Image.fromarray(np.zeros((20, 18, 3), np.uint8)).save(path / "test" / "cat" / "00.png")
    assert inputs(load_recipe("quickstart", {"data.name": "files", "data.files": [str(path)]})) != before


def test_a_run_from_python_may_scale_images(tmp_path):
    path = write_images(tmp_path / "i")
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(path / "dog" / "99.png")
    given = {"rounds": 1, "clients": 2, "partition.kind": "iid", "models.local": [{"hidden": [4]}], "participation": 1.0}
    run = fedmrl.run(
        "quickstart", data=path, method="standalone", settings={**given, "data.size": [6, 8]}, out=tmp_path / "run"
    )
    assert run.preparation.shape == [3, 6, 8] and tomllib.loads((tmp_path / "run" / "config.toml").read_text())["data"][
        "size"
    ] == [6, 8]
    with pytest.raises(UserError, match=r"settings: data.size\[0\] is 0; it must be at least 1"):
        fedmrl.run("quickstart", data=path, settings={"data.size": [0, 8]})


def test_a_notice_stays_within_the_comments_of_a_recipe(tmp_path):
    (folder := tmp_path / "a\nrounds = 3 #" / "i").mkdir(parents=True)
    for name in ("train", "test", "val"):
        write_images(folder / name)
    data = load(Files(files=[str(folder)]))
    assert "\n" in data.notices[0]
    recipe = tomllib.loads(starter(data, [folder], folder))
    assert recipe["rounds"] == 20


def test_init_caps_classes_per_client_and_clients(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    y = np.arange(600) % 12
    np.savez("many.npz", x=RNG.normal(size=(600, 4)).astype(np.float32), y=y)
    assert called("init", "many.npz").exit_code == 0
    recipe = tomllib.loads((tmp_path / "many.toml").read_text())
    assert recipe["clients"] == 10 and recipe["partition"]["classes_per_client"] == 5
    assert recipe["method"]["d1"] <= 32
    with pytest.raises(UserError, match=r"many.toml exists already; name another file with --out"):
        called("init", "many.npz")


def test_init_uses_the_test_samples_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with np.load(write_npz(tmp_path / "a.npz")) as arrays:
        np.savez("b.npz", **arrays, x_test=arrays["x"][:10], y_test=arrays["y"][:10])
    assert called("init", "b.npz").exit_code == 0
    assert tomllib.loads((tmp_path / "b.toml").read_text())["partition"]["test"] == "official"


def test_init_refuses_before_it_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("one.npz", x=np.zeros((3, 4), np.float32), y=np.array([0, 1, 2]))
    with pytest.raises(UserError):
        called("init", "one.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["one.npz"]
