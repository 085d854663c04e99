"""The base class of a recipe's tables, which are frozen and reject unknown keys."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

IS_PATH = "path"
"""Marks a field that holds a path, as in `Annotated[str, IS_PATH]`; in a recipe it is relative to the recipe's folder."""


class Table(BaseModel):
    """A table of a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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
