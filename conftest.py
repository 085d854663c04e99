"""What a test registers, it registers for itself alone."""

from collections.abc import Iterator

import pytest

from fedmrl.aggregation import RULES
from fedmrl.data import SOURCES
from fedmrl.methods import METHODS
from fedmrl.models import MODELS

REGISTRIES = (METHODS, SOURCES, MODELS, RULES)


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Every registry is as it was when the test is over; doctests too."""
    before = [dict(registry._entries) for registry in REGISTRIES]
    yield
    for registry, entries in zip(REGISTRIES, before, strict=True):
        registry._entries = entries
