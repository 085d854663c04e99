"""What a test registers, it registers for itself alone."""

from collections.abc import Iterator

import pytest

from fedmrl.aggregation import RULES
from fedmrl.data import SOURCES
from fedmrl.methods import METHODS
from fedmrl.models import MODELS


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Every registry is as it was when the test is over; doctests too."""
    every = (METHODS, SOURCES, MODELS, RULES)
    before = [dict(registry._entries) for registry in every]
    yield
    for registry, entries in zip(every, before, strict=True):
        registry._entries = entries
