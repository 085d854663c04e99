"""A recipe and its tables: the complete configuration of a run."""

from collections.abc import Iterable, Mapping
from itertools import cycle, islice
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    ValidationError,
    model_validator,
)

from fedmrl.aggregation import MEAN, Aggregation
from fedmrl.data import DataSource, Digits
from fedmrl.data.partition import PartitionTable
from fedmrl.engines import Terms
from fedmrl.errors import UserError, cause
from fedmrl.methods import Common, Method, WeightSharing
from fedmrl.methods.fedmrl import FedMRL
from fedmrl.models import CNN, CNNS, MLP, MODELS, Model, is_own
from fedmrl.plugins import NAMED, named_by, origins
from fedmrl.privacy import Privacy
from fedmrl.schema import first_problem
from fedmrl.table import Table
from fedmrl.training import Training


def _known_model(name: str) -> str:
    _model(name)
    return name


def _model(model: str | Model) -> Model:
    """A model, or the registered model of that name."""
    if isinstance(model, Model):
        return model
    found: Model = _named_model({"name": model})
    return found


def _named_model(given: Any) -> Any:
    """The model that a table names, with the table's other fields."""
    if not isinstance(given, Mapping):
        return given
    fields = dict(given)
    name = fields.pop("name")
    if not isinstance(name, str) or name not in MODELS:
        raise ValueError(f"there is no such model; {MODELS.hint(name)}")
    found = MODELS[name]
    kind, preset = (type(found), found.model_dump()) if isinstance(found, Model) else (found, {})
    if unknown := fields.keys() - kind.model_fields.keys():
        raise ValueError(f"{name} has no {min(unknown)}; it has {', '.join(kind.model_fields) or 'nothing to set'}")
    try:
        return kind.model_validate({**preset, **fields})
    except ValidationError as error:
        raise ValueError(f"{name}: {first_problem(error)}") from error


def _how_given(model: Any) -> str:
    if isinstance(model, str):
        return "name"
    if isinstance(model, Mapping):
        return "named" if "name" in model else "mlp" if "hidden" in model else "cnn"
    # A user's model may be derived from one of these.
    return "mlp" if type(model) is MLP else "named" if isinstance(model, Model) and type(model) is not CNN else "cnn"


# Discriminated by a key, so that an error names what is wrong in the chosen branch only.
Network = Annotated[
    Annotated[str, AfterValidator(_known_model), Tag("name")]
    | Annotated[CNN, Tag("cnn")]
    | Annotated[MLP, Tag("mlp")]
    | Annotated[
        Model,
        BeforeValidator(_named_model),
        PlainSerializer(lambda model: {"name": model.name, **model.model_dump(mode="json")}),
        Tag("named"),
    ],
    Discriminator(_how_given),
]


class ModelsTable(Table):
    """The recipe's `[models]` table."""

    local: Literal["heterogeneous", "homogeneous"] | Annotated[list[Network], Field(min_length=1)] = Field(
        "heterogeneous",
        description="heterogeneous: client k has CNN-(k mod 5 + 1); homogeneous: all CNN-1; or a list, assigned in turn, of "
        "names, CNNs as {conv1, conv2, fc1, fc2}, MLPs as {hidden}, a list of widths, and others as {name, …}",
    )
    small: Literal["auto"] | Network = Field(
        "auto",
        description="the model that all clients share; auto: the smallest of the local ones (on 3×32×32 images); with "
        "custom models CNN-5 (for images of at least 16×16), a text model (for tokens) or an MLP of 64 units, its widths "
        "halved until it is no larger than the smallest of them",
    )

    own: list[str] | None = Field(None, description="the names of models that were given from Python, one for each client")
    own_small: str | None = Field(None, description="the name of a shared model that was given from Python")

    @property
    def resolved_small(self) -> Any:
        """`small` as plain data."""
        return self.model_dump(mode="json")["small"]

    @property
    def kinds(self) -> list[Model]:
        """The kinds of local model, in the order in which clients get them."""
        if self.local == "heterogeneous":
            return list(CNNS.values())
        if self.local == "homogeneous":
            return [CNNS["cnn-1"]]
        return [_model(model) for model in self.local]

    @property
    def named(self) -> list[Model]:
        """All models that the table names."""
        return [*self.kinds, *([] if self.small == "auto" else [_model(self.small)])]

    def of_clients(self, clients: int) -> list[Model]:
        """The local model of each client."""
        return list(islice(cycle(self.kinds), clients))

    @property
    def shared(self) -> Model | None:
        """The model that all clients share; None: it is chosen when the data's shape and the clients' models are known."""
        if self.small != "auto":
            return _model(self.small)
        if self.own is not None or any(is_own(model) for model in self.kinds):
            return None
        return min(self.kinds, key=lambda model: model.parameters((3, 32, 32), 10))


class EvaluationTable(Table):
    """The recipe's `[evaluation]` table."""

    every: Annotated[int, Field(ge=1)] = Field(10, description="rounds between evaluations of all clients")
    mode: str | None = Field(None, description="inference mode, if not the method's default (see 'fedmrl methods')")
    targets: list[Annotated[float, Field(gt=0, le=1)]] = Field(
        [0.5, 0.9], description="accuracies to which the cost in rounds, parameters and FLOPs is reported"
    )


class Recipe(Table):
    """The complete configuration of a run."""

    seed: Annotated[int, Field(ge=0)] = Field(0, description="the seed of all random numbers")
    rounds: Annotated[int, Field(ge=1, le=10_000_000)] = Field(100, description="number of rounds")
    clients: Annotated[int, Field(ge=1)] = Field(10, description="number of clients")
    participation: Annotated[float, Field(gt=0, le=1)] | Annotated[str, Field(min_length=1)] = Field(
        1.0, description="the share of clients in a round, or a JSON file that lists the clients of each round"
    )
    imports: list[str] = Field([], description="Python files or modules that register custom classes the recipe names")
    data: DataSource = Digits()
    partition: PartitionTable = PartitionTable()
    models: ModelsTable = ModelsTable()
    method: Method = FedMRL()
    aggregation: Aggregation = MEAN
    privacy: Privacy | None = Field(None, description="differential privacy of what clients share")
    training: Training = Training()
    evaluation: EvaluationTable = EvaluationTable()

    @model_validator(mode="after")
    def _method_has_mode(self) -> Self:
        mode, method = self.evaluation.mode, self.method
        if mode is not None and mode not in method.modes:
            raise ValueError(
                f"evaluation.mode is {mode!r}, which {method.name} with these settings lacks; choose {choices(method.modes)}"
            )
        return self

    @model_validator(mode="after")
    def _method_aggregates(self) -> Self:
        if self.aggregation != MEAN and not self.method.averages:
            raise ValueError(
                f"aggregation.rule is {self.aggregation.name!r}, and {self.method.name} does not average clients' weights; "
                "leave it out"
            )
        return self

    @model_validator(mode="after")
    def _can_be_private(self) -> Self:
        private, method = self.privacy, self.method
        if private is None:
            return self
        if not method.averages:
            raise ValueError(f"privacy is for methods that average clients' weights, and {method.name} does not; leave it out")
        if not isinstance(method, WeightSharing) or not method.sends_weights:
            raise ValueError(
                f"privacy is for methods that send the shared weights as they are, and {method.name} sends something else, in "
                "which the noise would not be what was asked for; leave it out"
            )
        if method.weighting != "uniform":
            raise ValueError(
                "privacy bounds what any one client can change, for which all must weigh the same; set method.weighting to "
                "'uniform'"
            )
        if private.mode == "central" and self.aggregation != MEAN:
            raise ValueError(
                f"aggregation.rule is {self.aggregation.name!r}, and privacy.mode 'central' adds noise to the mean; leave the "
                "rule out, or choose 'local'"
            )
        if private.mode == "central" and isinstance(self.participation, str):
            raise ValueError(
                "participation is a file, and privacy.mode 'central' counts on clients that are drawn at random; give their "
                "share, or choose 'local'"
            )
        if private.delta * self.clients >= 1:
            raise ValueError(
                f"privacy.delta is {private.delta:g}, which would allow one of {self.clients} clients to be exposed; choose "
                f"less than {1 / self.clients:.2g}"
            )
        return self

    def terms(self, common: Common) -> Terms:
        """What the server and all clients agree on, once the data's shape and the shared model are known."""
        return Terms(self.method, self.training, common, self.seed, self.rounds, self.aggregation, self.privacy)

    @property
    def headline_mode(self) -> str:
        """The mode of the headline accuracy."""
        return self.evaluation.mode or self.method.modes[0]

    @property
    def headline_view(self) -> Literal["own", "aggregated"]:
        """The view of the headline accuracy: with the server's last shared part, as in the paper, if predictions use it."""
        return "aggregated" if self.method.hears_server else "own"

    @property
    def views(self) -> tuple[str, ...]:
        """The views that are evaluated: `own`, and `aggregated` if predictions depend on the server."""
        return ("own", "aggregated") if self.method.hears_server else ("own",)

    @property
    def recorded_modes(self) -> list[str]:
        """The modes recorded in each round, the headline mode first."""
        modes = self.method.modes
        return list(dict.fromkeys([self.headline_mode, *(modes if self.method.records_every_mode else modes[:1])]))

    def evaluates_all(self, number: int) -> bool:
        """Whether all clients are evaluated after this round, counted from 1."""
        return number % self.evaluation.every == 0 or number == self.rounds

    def resolved(self) -> dict[str, Any]:
        """The recipe as plain data, with defaults and without unset keys."""
        plain = self.model_dump(exclude={*NAMED, *([] if self.imports else ["imports"])}, exclude_none=True, mode="json")
        for table, named in NAMED.items():
            chosen = getattr(self, table)
            plain[table] = {named.key: named_by(chosen), **chosen.model_dump(exclude_none=True, mode="json")}
        return plain

    def to_toml(self) -> str:
        """The resolved recipe as TOML, which `fedmrl run` accepts."""
        try:
            return tomli_w.dumps(self.resolved())
        except (TypeError, ValueError, RecursionError) as error:  # a field of a user's class may hold anything
            raise UserError(
                f"the recipe cannot be written as TOML ({cause(error)}); the fields of your own classes must hold numbers, "
                "text, dates, lists or tables, and no NaN"
            ) from error

    def with_method(self, method: str | Method, changes: Mapping[str, Any] | None = None) -> "Recipe":
        """The recipe with another method, given by name or as an object, or with changed fields of the current one."""
        from fedmrl.config.parsing import parse_recipe  # it builds recipes, so it imports this module

        if isinstance(method, Method):
            return parse_recipe({**self.tables(), "method": method}, source=method.name)
        if not isinstance(method, str) or not isinstance({} if changes is None else changes, Mapping):
            raise UserError("with_method takes a method's name or a method, and changes as a table of its fields")
        fields = self.method.model_dump() if method == self.method.name else {}
        return parse_recipe({**self.tables(), "method": {"name": method, **fields, **(changes or {})}}, source=method)

    @property
    def origins(self) -> dict[str, str]:
        """The origin of each custom class that the recipe names, by key: a file, a module, or Python."""
        return origins({table: getattr(self, table) for table in NAMED}, self.models.named)

    def tables(self) -> dict[str, Any]:
        """The recipe's keys and tables, unchanged."""
        return {key: getattr(self, key) for key in type(self).model_fields}


def choices(names: Iterable[str]) -> str:
    """Names as a choice: `a, b or c`."""
    *some, last = names
    return f"{', '.join(some)} or {last}" if some else last
