"""Messages of FD and FedProto, with one row per class; the server keeps the latest of each client.

A message is `{"classes": (n,), <what>: (n, …)}`, with `counts` if rows are weighted by samples. The server's state has each
client's latest upload under `<client>/<name>`, and their totals by class under `sum` and `weight`.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmrl.messages import Choice, TensorForm, Tensors, Upload, UpTo

_MOST_SAMPLES = 2**24
"""The most samples of a class: up to here single precision counts exactly."""


def rows_form(what: str, width: int | UpTo, classes: int, dtype: torch.dtype, counts: bool) -> Choice:
    """The form of a message that has rows."""
    rows = UpTo("classes", classes)
    form = {"classes": TensorForm((rows,), torch.int64, below=classes), what: TensorForm((rows, width), dtype)}
    return form | ({"counts": TensorForm((rows,), dtype, count_up_to=_MOST_SAMPLES)} if counts else {})


def keep_uploads(server: Mapping[str, Tensor], uploads: Sequence[Upload], what: str) -> Tensors:
    """The server's state after these uploads replaced their clients' earlier ones."""
    kept = kept_uploads(server) | {upload.client: upload.content for upload in uploads}
    contents = [kept[client] for client in sorted(kept)]
    state = {f"{client}/{name}": tensor for client in sorted(kept) for name, tensor in kept[client].items()}
    labels = torch.cat([content["classes"] for content in contents])
    rows = torch.cat([content[what] for content in contents]).double()
    weight = rows.new_ones(len(rows))
    if "counts" in contents[0]:
        weight = torch.cat([content["counts"] for content in contents]).double()
    # A matrix product, as index_add on a GPU sums in no fixed order.
    of_class = F.one_hot(labels).double().T
    return state | {"sum": of_class @ (rows * weight[:, None]), "weight": of_class @ weight}


def kept_uploads(server: Mapping[str, Tensor]) -> dict[int, Tensors]:
    """The kept uploads by client."""
    kept: dict[int, Tensors] = {}
    for name, tensor in server.items():
        client, slash, what = name.partition("/")
        if slash:
            kept.setdefault(int(client), {})[what] = tensor
    return kept


def weighted_rows(content: Mapping[str, Tensor], what: str, classes: int) -> tuple[Tensor, Tensor]:
    """A message's sum and weight by class, in double precision; without `counts` each row has weight 1."""
    rows, labels = content[what].double(), content["classes"]
    weight = content["counts"].double() if "counts" in content else torch.ones_like(labels, dtype=torch.float64)
    sums_C = rows.new_zeros(classes, rows.shape[1]).index_add(0, labels, rows * weight[:, None])
    return sums_C, rows.new_zeros(classes).index_add(0, labels, weight)


def means(sums_C: Tensor, weight_C: Tensor, what: str, dtype: torch.dtype) -> Tensors:
    """A message with the mean of every class of positive weight, or an empty one."""
    labels = (weight_C > 0).nonzero().squeeze(1)
    return {"classes": labels, what: (sums_C[labels] / weight_C[labels, None]).to(dtype)} if len(labels) else {}


def write_rows(table_C: Tensor, known_C: Tensor, content: Mapping[str, Tensor], what: str) -> None:
    """Replaces a table of all classes and its mask of known ones by a message's rows, which may be none."""
    with torch.no_grad():
        table_C.zero_()
        known_C.zero_()
        if content:
            table_C[content["classes"]] = content[what].to(table_C)
            known_C[content["classes"]] = True
