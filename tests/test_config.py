import pytest
from tiny import tiny_recipe

from fedmrl.config import Recipe, known_keys, known_recipes, load_named, load_recipe, parse_recipe
from fedmrl.config.problems import RENAMED
from fedmrl.errors import UserError
from fedmrl.methods import METHODS
from fedmrl.models import CNN, MLP


@pytest.mark.parametrize("name", sorted(known_recipes()))
def test_every_recipe_that_comes_along_is_whole_and_serves_every_method(name):
    recipe = load_recipe(name)
    for method in METHODS:
        assert recipe.with_method(method, {}).method.name == method
    assert known_recipes()[name], "it says what it is"


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_resolved_recipe_is_complete_and_gives_the_same_recipe_again(tmp_path, method):
    recipe = tiny_recipe(method)
    path = tmp_path / "config.toml"
    path.write_text(recipe.to_toml())
    assert load_recipe(path).resolved() == recipe.resolved()
    written = recipe.resolved()
    for key in known_keys({"method": METHODS[method]}):
        table, _, name = key.rpartition(".")
        field = Recipe.model_fields.get(key)
        if field is not None:
            assert key in written or key == "imports"
        elif table in ("training", "partition", "evaluation") and name not in ("clip", "file", "mode"):
            assert name in written[table]


def test_a_run_folder_stands_for_its_recipe(tmp_path):
    (tmp_path / "config.toml").write_text("rounds = 7")
    assert load_named(tmp_path).recipe.rounds == 7


def test_files_named_in_a_recipe_lie_beside_it(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('participation = "who.json"\n[data]\nname = "arrays"\nfile = "own.npz"\n')
    recipe = load_recipe(path)
    assert recipe.data.file == str(tmp_path / "own.npz") and recipe.participation == str(tmp_path / "who.json")


def test_files_named_by_set_lie_where_the_command_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("quickstart", ["data.name=arrays", "data.file=own.npz", "participation=who.json"])
    assert recipe.data.file == str(tmp_path / "own.npz") and recipe.participation == str(tmp_path / "who.json")


def test_set_changes_a_key_by_its_path():
    recipe = load_recipe(
        "quickstart", ["method.d1=50", "training.lr = 0.5", "models.local=homogeneous", "partition.shares=[0.1, 0.2]"]
    )
    assert recipe.method.model_dump()["d1"] == 50
    assert recipe.training.lr == 0.5 and recipe.models.local == "homogeneous" and recipe.partition.shares == (0.1, 0.2)


def test_another_method_takes_none_of_the_first_ones_fields():
    assert load_recipe("quickstart", ["method.name=fedproto"]).method == METHODS["fedproto"]()
    assert load_recipe("quickstart", ["method.gamma=0.5", "method.name=fd"]).method == METHODS["fd"](gamma=0.5)
    assert load_recipe("quickstart", ["method.name=fedmrl"]).method.model_dump()["d1"] == 250


def test_client_k_has_cnn_k_mod_5_plus_1_and_the_smallest_is_shared():
    models = load_recipe("quickstart").models
    labels = [cnn.label for cnn in models.of_clients(7)]
    assert labels == ["CNN-1", "CNN-2", "CNN-3", "CNN-4", "CNN-5", "CNN-1", "CNN-2"]
    assert models.shared.label == "CNN-5", "however few clients there are"
    assert load_recipe("quickstart", {"models.local": "homogeneous"}).models.shared.label == "CNN-1"
    assert load_recipe("quickstart", {"models.local": ["cnn-2", "cnn-4"]}).models.shared.label == "CNN-4"


def test_lists_of_models_mix_names_cnns_and_mlps_and_the_smallest_of_all_is_shared():
    mixed = {"models.local": ["cnn-5", {"hidden": [64, 32]}, {"fc1": 9}, {"hidden": [32, 40]}]}
    models = load_recipe("quickstart", mixed).models
    assert [m.label for m in models.of_clients(5)] == ["CNN-5", "MLP(64-32)", "CNN(16-32-9-500)", "MLP(32-40)", "CNN-5"]
    assert models.shared.label == "CNN(16-32-9-500)", "it has 30,000 parameters; the MLPs read 3,072 numbers, so they have more"
    assert load_recipe("quickstart", {"models.local": [{"hidden": [64, 32]}, {"hidden": [32, 40]}]}).models.shared == MLP(
        hidden=(32, 40)
    )
    assert load_recipe("quickstart", {**mixed, "models.small": {"hidden": [16]}}).models.shared == MLP(hidden=(16,))


def test_an_empty_table_is_a_cnn_of_default_widths():
    assert load_recipe("quickstart", {"models.local": [{}]}).models.kinds == [CNN()]


def test_a_recipe_with_mlps_is_written_and_read_again(tmp_path):
    recipe = tiny_recipe(models__local=[{"hidden": [64, 32]}, "cnn-5", {"fc1": 9}], models__small={"hidden": [16]})
    (tmp_path / "config.toml").write_text(recipe.to_toml())
    assert load_recipe(tmp_path).models == recipe.models


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["traning.lr=1"], "there is no key traning.lr; did you mean training.lr?"),
        (["methd.d1=4"], "there is no key methd.d1; did you mean method.d1?"),
        (["mehtod.name=fml"], "there is no key mehtod.name; did you mean method.name?"),
        (["training.learning_rate=1"], "there is no key training.learning_rate"),
        (["lr=0.1"], "there is no key lr; did you mean training.lr?"),
        (["method.d2=5"], "there is no key method.d2; did you mean method.d1?"),
        (["batch_sice=3"], "there is no key batch_sice; did you mean training.batch_size?"),
        (["training.batch_size=0"], "training.batch_size is 0; it must be at least 1"),
        (["participation=0"], "participation is 0; it must be above 0"),
        (["participation=1.5"], "participation is 1.5; it must be at most 1"),
        (["participation=true"], "participation is true; it must not be a boolean"),
        (["training.lr=true"], "training: lr is true; it must not be a boolean"),
        (["models.local=cnn-1"], "models.local is 'cnn-1'"),
        (["models.small=cnn6"], "there is no such model; did you mean 'cnn-5'?"),
        (["partition.shares=[0.6]"], "partition.shares is [0.6]"),
        (["data=3"], "data is 3; it must be a table"),
        (["seed=" + "9" * 5000], "the value of seed is too long"),
        (["seed=" + "[" * 5000], "the value of seed is too long"),
        (["partition.alpha=0"], "partition.alpha is 0; it must be above 0"),
        (["partition.alpha=-1"], "partition.alpha is -1; it must be above 0"),
        (["partition.alpha=nan"], "partition.alpha is nan; it should be a finite number"),
        (["partition.kind=klass"], "partition.kind is 'klass'; choose 'class', 'dirichlet', 'iid', 'given'"),
        (["partition.shares=[0.6, 0.4]"], "partition: shares is [0.6, 0.4]; its first value must not be above its second"),
        (["partition.kind=given"], "partition: kind is 'given', so file must name a JSON"),
        (["rounds=ten"], "rounds is 'ten'; it must be a whole number"),
        (["rounds=0"], "rounds is 0; it must be at least 1"),
        (["training.momentum=1"], "training.momentum is 1; it must be below 1"),
        (["training=5"], "training is 5"),
        (["training.lr.x=5"], "training.lr.x cannot be set, as lr is a value, not a table"),
        (["models.local=[]"], "models.local is []; its length must be at least 1"),
        (["models.local=[\"cnn-9\"]"], "models.local[0] is 'cnn-9'; there is no such model; did you mean 'cnn-5'?"),
        (["models.small=cnn-7"], "models.small is 'cnn-7'"),
        (["models.small={fc1 = 0}"], "models.small.fc1 is 0; it must be at least 1"),
        (["models.local=[{fc1 = 0}]"], "models.local[0].fc1 is 0; it must be at least 1"),
        (["models.small={fc1 = true}"], "models.small: fc1 is true; it must not be a boolean"),
        (["models.small={fc = 1}"], "there is no key models.small.fc; did you mean models.small.fc"),
        (["models.small={hiden = [8]}"], "there is no key models.small.hiden; did you mean models.small.hidden?"),
        (["models.small={depth = 3}"], "there is no key models.small.depth; a model has hidden alone, or any of conv1, conv2"),
        (["models.small={hidden = [8], fc1 = 3}"], "there is no key models.small.fc1; a model has hidden alone"),
        (["models.local=[{hidden = [8], fc1 = 3}]"], "there is no key models.local[0].fc1; a model has hidden alone"),
        (["models.small={hidden = []}"], "models.small.hidden is []; its length must be at least 1"),
        (["models.local=[{}, {hidden = []}]"], "models.local[1].hidden is []; its length must be at least 1"),
        (["models.small={hidden = [0]}"], "models.small.hidden[0] is 0; it must be at least 1"),
        (["models.local=[\"cnn-1\", {hidden = [8, 0]}]"], "models.local[1].hidden[1] is 0; it must be at least 1"),
        (["models.small={hidden = 8}"], "models.small.hidden is 8; it must be a list"),
        (["models.small={hidden = true}"], "models.small: hidden is true; it must not be a boolean"),
        (["models.small={hidden = [true]}"], "models.small.hidden[0] is True; it must be a whole number"),
        (["models.local={hidden = [8]}"], "models.local is {'hidden': [8]}; it must be a list"),
        (["method.name=fedmlr"], "method.name is 'fedmlr', which is not a known method; did you mean 'fedmrl'?"),
        (["method.name=fedprot0"], "did you mean 'fedproto'?"),
        (["method.d1=0"], "method.d1 is 0; it must be at least 1"),
        (["method=3"], "method is 3; it must be a table with a name"),
        (["method.mrl=false", "method.header=shared"], "mrl is false"),
        (["evaluation.mode=local"], "evaluation.mode is 'local', which fedmrl with these settings lacks; choose mix-large"),
        (["method.mrl=false", "evaluation.mode=mix-small"], "choose mix-large or single-large"),
        (["rounds"], "settings has 'rounds'; expected key=value"),
        (["=3"], "expected key=value"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_recipe_is_one_sentence_with_the_key_and_the_way_out(settings, sentence):
    with pytest.raises(UserError) as refusal:
        load_recipe("quickstart", settings)
    assert sentence in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_file_that_is_no_recipe_is_refused(tmp_path):
    cases = {
        "broken.toml": (b"rounds = = 3", "is not TOML"),
        "binary.toml": (b"\xff\xfe\x00", "is not text"),
    }
    for name, (content, sentence) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=sentence):
            load_recipe(tmp_path / name)
    with pytest.raises(UserError, match=r"no.toml cannot be read \(No such file"):
        load_recipe(tmp_path / "no.toml")
    with pytest.raises(UserError, match=r"did you mean 'quickstart'\?"):
        load_recipe("quikstart")
    with pytest.raises(UserError, match="'fedmrl recipes' lists them"):
        load_recipe("zzz")
    with pytest.raises(UserError, match=r"a folder without a run's config.toml"):
        load_recipe(tmp_path)


def test_the_source_is_named():
    with pytest.raises(UserError, match=r"^mine\.toml: rounds is 0"):
        parse_recipe({"rounds": 0}, source="mine.toml")


def write(path, text):
    path.write_text(text)
    return path


def test_a_recipe_extends_another_key_by_key(tmp_path):
    write(
        tmp_path / "base.toml", 'rounds = 7\nclients = 6\n[training]\nlr = 0.5\nepochs = 3\n[method]\nname = "fml"\nalpha = 0.1'
    )
    own = write(tmp_path / "own.toml", 'extends = "base.toml"\nclients = 8\n[training]\nlr = 0.25\n[method]\nbeta = 0.2')
    recipe = load_recipe(own)
    assert (recipe.rounds, recipe.clients, recipe.training.lr, recipe.training.epochs) == (7, 8, 0.25, 3)
    assert recipe.method == METHODS["fml"](alpha=0.1, beta=0.2)
    assert "extends" not in recipe.to_toml(), "what is written down is complete"


def test_a_recipe_that_names_another_method_takes_none_of_its_fields(tmp_path):
    own = write(tmp_path / "own.toml", 'extends = "quickstart"\n[method]\nname = "fml"')
    assert load_recipe(own).method == METHODS["fml"]() and load_recipe(own).clients == load_recipe("quickstart").clients


def test_files_lie_beside_the_recipe_that_names_them(tmp_path):
    (tmp_path / "base").mkdir()
    write(tmp_path / "base" / "base.toml", 'participation = "who.json"\n[data]\nname = "arrays"')
    own = write(tmp_path / "own.toml", 'extends = "base/base.toml"\n[data]\nfile = "own.npz"')
    recipe = load_recipe(own)
    assert recipe.participation == str(tmp_path / "base" / "who.json") and recipe.data.file == str(tmp_path / "own.npz")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('extends = "own.toml"', "extends itself, through"),
        ('extends = "quickstrat"', "there is no recipe 'quickstrat'; did you mean 'quickstart'?"),
        ("extends = 3", "extends is 3; it must be the name of a recipe, or a TOML file"),
        ('extends = "none.toml"', "none.toml cannot be read"),
    ],
)
def test_a_recipe_that_extends_nothing_is_a_sentence(tmp_path, text, says):
    with pytest.raises(UserError, match=says):
        load_recipe(write(tmp_path / "own.toml", text))


@pytest.mark.parametrize("old", RENAMED)
def test_a_key_of_an_older_version_is_refused_with_its_name_today(tmp_path, old):
    table, _, name = old.rpartition(".")
    own = write(tmp_path / "own.toml", f'extends = "quickstart"\n[{table}]\n{CLASSES[old]}\n{name} = 1')
    with pytest.raises(UserError, match=rf"there is no key {old}; it is now called {RENAMED[old]}$"):
        load_recipe(own)
    renamed = RENAMED[old].rpartition(".")[2]
    assert load_recipe(write(own, own.read_text().replace(f"{name} =", f"{renamed} ="))), "the new name is a key"


CLASSES = {"aggregation.liars": 'rule = "krum"'}
"""What the table of each renamed key has to name."""
