"""The default shared model for clients with custom models."""

from fedmrl.models.cnn import CNN, CNNS
from fedmrl.models.mlp import MLP

_SMALLEST_IMAGE = 16  # pixels a side; a CNN's convolutions reduce smaller images to nothing
_NARROW = MLP(hidden=(64,))


def shared_beside(parameters: int, shape: tuple[int, ...], classes: int) -> CNN | MLP:
    """CNN-5 for images of at least 16×16, else an MLP of 64 units, with widths halved down to at most `parameters`.

    >>> shared_beside(1_000_000, (3, 32, 32), classes=10).label, shared_beside(50_000, (3, 32, 32), classes=10).label
    ('CNN-5', 'CNN(4-8-125-125)')
    >>> shared_beside(600, (20,), classes=4).label, shared_beside(600, (1, 8, 8), classes=10).label
    ('MLP(16)', 'MLP(4)')
    """
    convolves = len(shape) == 3 and min(shape[1:]) >= _SMALLEST_IMAGE
    model: CNN | MLP = CNNS["cnn-5"] if convolves else _NARROW
    while model.parameters(shape, classes) > parameters and (narrower := _halved(model)) != model:
        model = narrower
    return model


def _halved(model: CNN | MLP) -> CNN | MLP:
    """The model with half of each width, and at least one unit."""
    if isinstance(model, MLP):
        return MLP(hidden=tuple(max(1, width // 2) for width in model.hidden))
    return CNN(**{name: max(1, width // 2) for name, width in model.model_dump().items()})
