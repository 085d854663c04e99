"""Validation of files that are read back: errors name the field that does not have its type."""

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from fedmrl.errors import UserError

T = TypeVar("T")
_RUN_AGAIN = "run it again into another folder"


class Part(BaseModel):
    """A part of a file; ignores fields that newer versions may write."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


def read_text(path: Path) -> str:
    """Reads a text file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); {_RUN_AGAIN}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged: it is not text; {_RUN_AGAIN}") from error


def parsed(path: Path, text: str | bytes, advice: str = _RUN_AGAIN) -> Any:
    """Parses JSON; `path` and `advice`, what to do, are for errors."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); {advice}") from error


def checked(path: Path, schema: type[T], plain: Any, advice: str = _RUN_AGAIN) -> T:
    """Validates plain data as this type; `path` and `advice`, what to do, are for errors."""
    try:
        return TypeAdapter(schema).validate_python(plain)
    except ValidationError as error:
        raise UserError(f"{path} is damaged ({first_problem(error)}); {advice}") from error


def first_problem(error: ValidationError) -> str:
    """The first error, and where it is."""
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    message = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
