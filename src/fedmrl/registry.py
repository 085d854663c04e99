"""Registries: methods, datasets, models and aggregation rules by their names, fedmrl's own like anyone's.

A thing gets into a registry when its module is imported: fedmrl's own at once, a user's by `--import FILE`, by `imports` in a
recipe, by an entry point of an installed package, or by whoever imports it in Python.
"""

import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from fedmrl.errors import CODE_FAILS, UserError, cause
from fedmrl.files import sha256_of, user_path

T = TypeVar("T")

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def is_name(name: Any) -> bool:
    """Whether something can be registered, and a folder made, under this name.

    >>> is_name("my-method"), is_name("../x")
    (True, False)
    """
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


_closed: ContextVar[bool] = ContextVar("closed", default=False)


@contextmanager
def loading_nothing() -> Iterator[None]:
    """Inside, no package is loaded because something names what it announces: whoever reads a folder executes nothing."""
    token = _closed.set(True)
    try:
        yield
    finally:
        _closed.reset(token)


@dataclass(frozen=True)
class _Entry(Generic[T]):
    thing: T
    origin: str
    """Where it comes from: a file, or a module; empty for what comes with fedmrl."""
    listed: bool


class Registry(Mapping[str, T]):
    """Things of one kind by name.

    >>> colours: Registry[int] = Registry("colour", "fedmrl.colours")
    >>> colours.add("red", 0xFF0000, module="fedmrl.colours")
    >>> list(colours), "red" in colours, colours.find("red", "my.toml: colour")
    (['red'], True, 16711680)
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        """What one of them is called in errors."""
        self.group = group
        """The entry points' group in which installed packages name theirs."""
        self._entries: dict[str, _Entry[T]] = {}

    def add(self, name: str, thing: T, module: str, listed: bool = True) -> None:
        """Registers a thing that is defined in this module; the same name again only from there.

        One that is not `listed` is not offered to choose from.
        """
        if not is_name(name):
            article = "an" if self.kind[0] in "aeiou" else "a"
            raise UserError(f"{article} {self.kind} cannot be named {name!r}; use small letters, digits and hyphens")
        origin = origin_of(module)
        known = self._entries.get(name)
        if known and known.origin != origin:
            by = known.origin or "fedmrl itself"
            raise UserError(f"{origin or module}: there is a {self.kind} {name!r} already, by {by}; choose another name")
        self._entries[name] = _Entry(thing, origin, listed)

    def __getitem__(self, name: str) -> T:
        if name not in self._entries and not _closed.get():
            self._load_entry_point(name)
        return self._entries[name].thing

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, name: Any, where: str) -> T:
        """The thing of that name; `where` says in the error who named it."""
        if isinstance(name, str):
            try:
                return self[name]
            except KeyError:
                pass
        raise UserError(f"{where} is {name!r}, which is no {self.kind}; {self.hint(name)}")

    def hint(self, name: Any) -> str:
        """What to do about a name that is not there."""
        known = self.names()
        near = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.5)
        return f"did you mean {near[0]!r}?" if near else f"choose {', '.join(known)}, or --import the file that registers it"

    def names(self) -> list[str]:
        """What to choose from, also what installed packages announce and is not loaded yet."""
        listed = [name for name, entry in self._entries.items() if entry.listed]
        return list(dict.fromkeys([*listed, *(point.name for point in entry_points(group=self.group))]))

    def origin(self, name: str) -> str:
        """The file or module that a thing comes from; empty for what comes with fedmrl."""
        return self._entries[name].origin if name in self._entries else ""

    def _load_entry_point(self, name: str) -> None:
        for point in entry_points(group=self.group, name=name):
            try:
                point.load()
            except CODE_FAILS as error:
                raise UserError(
                    f"the {self.kind} {name!r} of {_package(point)} cannot be loaded ({cause(error)}); mend it"
                ) from error
            if name not in self._entries:
                raise UserError(f"{_package(point)} announces a {self.kind} {name!r} and registers none of that name; mend it")


def _package(point: Any) -> str:
    return f"the package {point.dist.name}" if point.dist else point.value


_imported: dict[Path, tuple[str, str]] = {}
"""Files that were imported by their path: the SHA-256 of each, and the name of its module."""


def origin_of(module: str) -> str:
    """Where a module comes from, for people: its file if it was imported as one or run as the program, else its name."""
    if module.partition(".")[0] == "fedmrl":
        return ""
    for path, (_, name) in _imported.items():
        if name == module:
            return str(path)
    if module == "__main__":
        return getattr(sys.modules[module], "__file__", None) or "Python"
    return module


def import_all(sources: Sequence[str], tell: Callable[[str], None] = lambda line: None) -> None:
    """Imports each file or module, so that what it registers is there."""
    for source in sources:
        if is_file(source):
            _import_file(user_path(source, "imports").absolute(), tell)
        else:
            _executed(source, lambda source=source: importlib.import_module(source))  # type: ignore[misc]


def is_file(source: str) -> bool:
    """Whether an import names a file, not a module."""
    return source.endswith(".py") or "/" in source or "\\" in source


def _import_file(path: Path, tell: Callable[[str], None]) -> None:
    if not path.is_file():
        raise UserError(f"{path} does not exist; imports must name Python files or modules")
    digest = sha256_of(path)
    if path in _imported and _imported[path][0] == digest:
        return
    # The module's name is its own, so that two files of one name do not meet; those that it imports lie beside it.
    name = f"imported:{path}"
    spec = importlib.util.spec_from_file_location(name, path)
    loader = spec.loader if spec else None
    assert spec is not None and loader is not None
    module = importlib.util.module_from_spec(spec)
    tell(f"importing {path}")
    before = _imported.get(path)
    _imported[path] = (digest, name)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        _executed(str(path), lambda: loader.exec_module(module))
    except BaseException:
        del sys.modules[name]
        _imported.pop(path) if before is None else _imported.update({path: before})
        raise


def _executed(source: str, execute: Callable[[], ModuleType | None]) -> None:
    try:
        execute()
    except UserError:
        raise
    except ModuleNotFoundError as error:
        raise UserError(f"{source} cannot be imported (there is no module {error.name}); install it") from error
    except CODE_FAILS as error:
        line = _line_of(error, source)
        raise UserError(f"{source} cannot be imported ({cause(error)}{line}); mend it") from error


def _line_of(error: BaseException, source: str) -> str:
    """The last line of the file itself that the error came through."""
    number = error.lineno if isinstance(error, SyntaxError) and error.filename == source else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == source:
            number = trace.tb_lineno
        trace = trace.tb_next
    return f", line {number}" if number else ""
