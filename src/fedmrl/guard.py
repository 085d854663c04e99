"""Guards around users' classes: a sentence for what their functions raise or wrongly return."""

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from fedmrl.errors import CODE_FAILS, UserCodeError, UserError, cause
from fedmrl.registry import line_of, origin_of

Check = Callable[..., str | None]
"""Called with a function's result and its arguments; returns what is wrong with the result, if anything."""

_THROUGH = (UserError, MemoryError, torch.OutOfMemoryError)


def is_ours(kind: type) -> bool:
    """Whether a class is fedmrl's own, whose bugs must not look like a user's."""
    return not origin_of(kind.__module__)


def guard(cls: type, what: str, checks: Mapping[str, Check]) -> None:
    """Wraps these functions and properties of a user's class so that failures become a `UserCodeError`.

    The sentence names the object as `what` and its `name`, the function, and the cause.
    """
    if is_ours(cls):
        return
    for name, check in checks.items():
        found = inspect.getattr_static(cls, name, None)
        if hasattr(found.fget if isinstance(found, property) else found, "__guarded__"):
            continue
        if isinstance(found, property) and found.fget is not None:
            setattr(cls, name, property(_guarded(found.fget, what, name, check), doc=found.__doc__))
        elif inspect.isfunction(found):
            setattr(cls, name, _guarded(found, what, name, check))
        elif found is not None and not hasattr(found, "__get__") and (problem := check(found)):
            raise UserError(f"{cls.__name__}.{name} {problem}; mend it")


def _guarded(function: Callable[..., Any], what: str, name: str, check: Check) -> Callable[..., Any]:
    @wraps(function)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = function(self, *args, **kwargs)
            problem = check(result, *args, **kwargs)
        except CODE_FAILS as error:
            if isinstance(error, _THROUGH):
                raise
            raise failure(self, what, name, error) from error
        if problem:
            raise UserCodeError(f"{called(self, what)}: {name} {problem}; mend it")
        return result

    told.__guarded__ = True  # type: ignore[attr-defined]
    return told


def called(thing: Any, what: str) -> str:
    """A user's object in messages: its kind and its name."""
    return f"{what} {getattr(type(thing), 'name', type(thing).__name__)!r}"


def failure(thing: Any, what: str, name: str, error: BaseException) -> UserCodeError:
    """The sentence for an exception in a function of a user's object, with the line in the file of its class."""
    return UserCodeError(f"{called(thing, what)}: {name} fails ({cause(error)}{_line_in(type(thing), error)}); mend it")


def _line_in(kind: type, error: BaseException) -> str:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return line_of(error, file) if file else ""


def is_line(value: Any) -> bool:
    """Whether a value is a line of text, which tables and files can hold.

    >>> is_line("a name"), is_line(" "), is_line("two\\nlines"), is_line(3)
    (True, False, False, False)
    """
    return isinstance(value, str) and bool(value.strip()) and len(value.splitlines()) == 1 and value.isprintable()


def line(result: Any, *_: Any, **__: Any) -> str | None:
    """The check of a name or title."""
    return None if is_line(result) else f"is {result!r:.80}; it must be a line of text"


def nothing(result: Any, *_: Any, **__: Any) -> None:
    """The check of a function whose result is not used."""


def tensors(result: Any, *_: Any, **__: Any) -> str | None:
    """The check of a message or state: dense tensors by name, which no longer depend on a graph."""
    if not isinstance(result, Mapping):
        return f"returns {described(result)}; it must return a dict of tensors by name"
    for name, tensor in result.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            return f"returns {described(tensor)} under {name!r}; it must return a dict of tensors by name"
        if tensor.layout is not torch.strided or tensor.is_meta:
            return f"returns a sparse or empty tensor under {name!r}; it must be dense"
        if tensor.requires_grad:
            return f"returns a tensor that requires gradients under {name!r}; return a copy, as fedmrl.messages.copy makes"
    return None


def described(value: Any) -> str:
    """A wrong value in messages.

    >>> described(None), described(torch.zeros(2, 3)), described("x")
    ('None', 'a tensor of shape [2, 3]', 'a str')
    """
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"
