"""Damage to JSON, one field at a time: each is left out, and each takes every other type."""

import copy
from collections.abc import Iterator
from typing import Any

OTHERS: tuple[Any, ...] = (None, "other", -7, 0.5, True, [], {}, float("nan"), ["other"], {"other": "other"})


def places(plain: Any, most: int = 2) -> Iterator[tuple[Any, ...]]:
    """The path of every field; of a long list, the first few."""
    keys = plain if isinstance(plain, dict) else range(min(len(plain), most)) if isinstance(plain, list) else ()
    for key in keys:
        yield (key,)
        yield from ((key, *path) for path in places(plain[key], most))


def damaged(plain: Any, others: tuple[Any, ...] = OTHERS) -> Iterator[tuple[str, Any]]:
    """The same with one thing wrong, and what that is."""
    for path in places(plain):
        for other in ("missing", *others):
            changed = copy.deepcopy(plain)
            within = changed
            for key in path[:-1]:
                within = within[key]
            if other == "missing":
                del within[path[-1]]
            else:
                within[path[-1]] = other
            yield f"{'.'.join(map(str, path))}: {other!r}", changed
