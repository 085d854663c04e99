"""The default shared model for clients with custom models."""

from fedmrl.models.cnn import CNN, CNNS
from fedmrl.models.mlp import MLP
from fedmrl.models.text import Text

_SMALLEST_IMAGE = 16  # pixels a side; a CNN's convolutions reduce smaller images to nothing
_NARROW = MLP(hidden=(64,))


def shared_beside(parameters: int, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> CNN | MLP | Text:
    """CNN-5 for images of at least 16×16, a text model for tokens, else an MLP of 64 units, with widths halved down to at most
    `parameters`.

    >>> shared_beside(1_000_000, (3, 32, 32), classes=10).label, shared_beside(50_000, (3, 32, 32), classes=10).label
    ('CNN-5', 'CNN(4-8-125-125)')
    >>> shared_beside(600, (20,), classes=4).label, shared_beside(600, (1, 8, 8), classes=10).label
    ('MLP(16)', 'MLP(4)')
    """
    convolves = len(shape) == 3 and min(shape[1:]) >= _SMALLEST_IMAGE
    model: CNN | MLP | Text = CNNS["cnn-5"] if convolves else _NARROW
    if vocabulary is not None:
        model = Text(vocabulary=max(2, vocabulary))
    while model.parameters(shape, classes) > parameters and (narrower := _halved(model)) != model:
        model = narrower
    return model


def _halved(model: CNN | MLP | Text) -> CNN | MLP | Text:
    """The model with half of each width, and at least one unit."""
    if isinstance(model, Text):
        hidden = tuple(max(1, width // 2) for width in model.hidden)
        return Text(vocabulary=model.vocabulary, embedding=max(1, model.embedding // 2), hidden=hidden)
    if isinstance(model, MLP):
        return MLP(hidden=tuple(max(1, width // 2) for width in model.hidden))
    return CNN(**{name: max(1, width // 2) for name, width in model.model_dump().items()})
