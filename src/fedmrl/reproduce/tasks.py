"""Whole runs as tasks of a Ray cluster, each on one CPU of any node."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fedmrl.errors import UserError, cause
from fedmrl.federation.hosts import About, connect, own_errors

T = TypeVar("T")
_LOOK = 1.0  # seconds between two looks at the clock


@dataclass(frozen=True)
class Done(Generic[T]):
    """A task that has ended: its name, and its value or why there is none."""

    name: str
    value: T | None
    failure: str = ""


def run_tasks(work: Callable[..., T], arguments: Mapping[str, Sequence[Any]], until: float) -> Generator[Done[T], None, None]:
    """Calls `work` on the cluster with each of these arguments, and yields each as it ends.

    At `until`, by the monotonic clock, or when nobody listens any more, those that run are ended. Ray starts a task again whose
    node is lost. A `UserError` ends them all.
    """
    ray, _ = connect()
    here = About.here([])
    task = ray.remote(_with_about).options(num_cpus=1)
    values = {id(value): value for of_task in arguments.values() for value in of_task}
    refs = {key: ray.put(value) for key, value in values.items()}  # what several tasks share is sent to a node once
    running = {task.remote(work, *(refs[id(value)] for value in of_task)): name for name, of_task in arguments.items()}
    try:
        while running and time.monotonic() < until:
            ended, _ = ray.wait(list(running), num_returns=1, timeout=min(_LOOK, max(0.0, until - time.monotonic())))
            for ref in ended:
                name = running.pop(ref)
                try:
                    with own_errors(ray):
                        about, value = ray.get(ref)
                except UserError:
                    raise
                except Exception as error:
                    yield Done(name, None, cause(getattr(error, "cause", None) or error))
                else:
                    here.check("that ran " + name, about)
                    yield Done(name, value)
    finally:
        for ref in running:
            with suppress(Exception):
                ray.cancel(ref, force=True)


def _with_about(work: Callable[..., T], *values: Any) -> tuple[About, T]:
    return About.here([]), work(*values)
