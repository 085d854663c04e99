"""The base class of a recipe's tables, which are frozen and reject unknown keys."""

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fedmrl.errors import UserError, cause
from fedmrl.schema import first_problem

IS_PATH = "path"
"""Marks a field that holds a path, as in `Annotated[str, IS_PATH]`; in a recipe it is relative to the recipe's folder."""


class Table(BaseModel):
    """A table of a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    if not TYPE_CHECKING:  # type checkers know the fields

        def __init__(self, **fields: Any) -> None:
            """Raises `UserError` for wrong fields."""
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise UserError(f"{type(self).__name__}: {first_problem(error)}") from error
            except TypeError as error:  # as from a table in the place of an object
                raise UserError(f"{type(self).__name__}: {cause(error)}") from error

        # Validating a recipe does not come by here, so it still reports where a problem is.
        __init__.__pydantic_base_init__ = True

    @model_validator(mode="before")
    @classmethod
    def _booleans_only_where_declared(cls, plain: Any) -> Any:
        for name, field in cls.model_fields.items():
            if isinstance(plain, dict) and isinstance(plain.get(name), bool) and field.annotation is not bool:
                raise ValueError(f"{name} is {str(plain[name]).lower()}; it must not be a boolean")
        return plain

    @classmethod
    def path_fields(cls) -> list[str]:
        """The fields that hold a path."""
        return [name for name, field in cls.model_fields.items() if IS_PATH in field.metadata]


class Named(Table):
    """A table whose kind has a name, by which recipes choose it."""

    name: ClassVar[str]
    """What recipes call it; a class that does not say has its own name in small letters."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        # What is derived from another is not that other: a run's folder would name the wrong one.
        cls.name = cls.__dict__.get("name", cls.__name__.lower())
