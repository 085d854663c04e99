"""The paper's five convolutional networks, and variants with other widths."""

from collections import OrderedDict
from typing import Annotated, ClassVar

from pydantic import Field
from torch import nn

from fedmrl.errors import UserError
from fedmrl.models.split import Model, Split

Width = Annotated[int, Field(ge=1, le=100_000)]


class CNN(Model):
    """Two 5×5 convolutions without padding, each with 2×2 max pooling and ReLU, then two fully connected layers with ReLU,
    the second of which outputs the representation; the fields are their widths.
    """

    name: ClassVar[str] = "cnn"

    conv1: Width = 16
    conv2: Width = 32
    fc1: Width = 500
    fc2: Width = 500

    @property
    def label(self) -> str:
        """The name in tables.

        >>> CNN(fc1=2000).label, CNN(conv2=8, fc1=60, fc2=20).label
        ('CNN-1', 'CNN(16-8-60-20)')
        """
        names = {spec: name.upper() for name, spec in CNNS.items()}
        return names.get(self, f"CNN({self.conv1}-{self.conv2}-{self.fc1}-{self.fc2})")

    def build(self, shape: tuple[int, ...], classes: int) -> Split:
        """Builds a network for images of this shape, with weights from torch's current random state."""
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise UserError(
                f"{self.label} takes images of at least 16×16 pixels as channels × height × width; the data has shape "
                f"{'×'.join(map(str, shape))}; models such as {{hidden = [64, 32]}} take any shape"
            )
        channels, height, width = shape
        flat = self.conv2 * _after_convolutions(height) * _after_convolutions(width)
        # Pooling before ReLU has bit-identical results and gradients, and leaves ReLU a quarter of the numbers.
        layers = OrderedDict(
            conv1=nn.Conv2d(channels, self.conv1, 5),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(self.conv1, self.conv2, 5),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            fc1=nn.Linear(flat, self.fc1),
            relu3=nn.ReLU(),
            fc2=nn.Linear(self.fc1, self.fc2),
            relu4=nn.ReLU(),
        )
        return Split(nn.Sequential(layers), nn.Linear(self.fc2, classes), self.fc2)

    def parameters(self, shape: tuple[int, ...], classes: int) -> int:
        """The number of trainable parameters.

        >>> CNNS["cnn-5"].parameters((3, 32, 32), classes=10)
        670058
        """
        return super().parameters(shape, classes)

    def with_dim(self, dim: int) -> "CNN":
        """This network with a representation of another dimension."""
        return self.model_copy(update={"fc2": dim})


def _after_convolutions(pixels: int) -> int:
    for _ in range(2):
        pixels = (pixels - 4) // 2
    return pixels


# The appendix's table. CNN-4's printed size (3.81 MB) does not follow from its structure (4.04 MiB); we keep the structure.
CNNS: dict[str, CNN] = {
    "cnn-1": CNN(conv2=32, fc1=2000),
    "cnn-2": CNN(conv2=16, fc1=2000),
    "cnn-3": CNN(conv2=32, fc1=1000),
    "cnn-4": CNN(conv2=32, fc1=800),
    "cnn-5": CNN(conv2=32, fc1=500),
}
