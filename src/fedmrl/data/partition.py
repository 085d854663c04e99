"""Partitions of the samples over clients: by class, Dirichlet, IID or given; then each client's train and test set."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedmrl.data.sources import Dataset
from fedmrl.errors import UserError
from fedmrl.files import read_json, user_path
from fedmrl.randomness import generator
from fedmrl.table import Table

Indices = NDArray[np.int64]


class PartitionTable(Table):
    """The recipe's `[partition]` table."""

    kind: Literal["class", "dirichlet", "iid", "given", "own"] = Field(
        "class", description="how samples are distributed over clients; own: each client's data is given apart"
    )
    classes_per_client: Annotated[int, Field(ge=1)] = Field(2, description="class: number of classes of each client")
    shares: tuple[Annotated[float, Field(ge=1e-6, le=1e6)], Annotated[float, Field(ge=1e-6, le=1e6)]] = Field(
        (0.4, 0.6), description="class: a class goes to its clients in shares drawn from this range, normalised"
    )
    alpha: Annotated[float, Field(gt=0, le=1e6)] = Field(0.5, description="dirichlet: smaller is more uneven")
    min_samples: Annotated[int, Field(ge=2)] = Field(10, description="dirichlet: redrawn until every client has this many")
    tries: Annotated[int, Field(ge=1)] = Field(100, description="dirichlet: number of draws before giving up")
    file: str | None = Field(None, description="given: a JSON of each client's sample numbers, or a run's split.json")
    test: Literal["split", "official"] = Field(
        "split",
        description="split: divide each client's data; official: distribute the test samples that came with the data alike",
    )
    test_share: Annotated[float, Field(gt=0, lt=1)] = Field(0.2, description="split: share of a client's data used for testing")
    set_aside: Annotated[int, Field(ge=0)] = Field(
        0, description="number of random samples (with test = official: training samples) that no client gets"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.shares[0] > self.shares[1]:
            raise ValueError(f"shares is {list(self.shares)}; its first value must not be above its second")
        if self.kind == "given" and self.file is None:
            raise ValueError("kind is 'given', so file must name a JSON of each client's sample numbers")
        if self.kind == "given" and self.set_aside:
            raise ValueError("kind is 'given', so the file assigns all samples; leave set_aside out")
        if self.kind == "own" and self.set_aside:
            raise ValueError("kind is 'own', so each client keeps all its samples; leave set_aside out")
        return self


@dataclass(frozen=True)
class ClientSplit:
    """The samples of one client, as positions in the dataset."""

    train: Indices
    test: Indices


def partition(table: PartitionTable, data: Dataset, clients: int, seed: int) -> list[ClientSplit]:
    """Partitions the samples over all clients."""
    if table.kind == "own" or data.owners is not None:
        return _own(table, data, clients, seed)
    if table.kind == "given":
        return _given(table, data, clients, seed)
    official = table.test == "official" or data.own_test
    pool = data.official_train if official else len(data.y)
    if official and pool == len(data.y):
        raise UserError(f"partition.test is 'official', and {data.name} has no official test set; use 'split'")
    kept = _kept(table, data, pool, seed)
    if clients > len(kept):
        left = " that partition.set_aside leaves" if table.set_aside else ""
        raise UserError(f"clients is {clients}, more than the {len(kept)} samples of {data.name}{left}; choose fewer")
    shares = _SHARES[table.kind](table, data, data.y[kept], clients, seed)
    dealt = [kept[own] for own in deal(data.y[kept], shares, generator(seed, "deal"))]
    if official:
        tests = deal(data.y[pool:], shares, generator(seed, "deal-test"))
        splits = [ClientSplit(train, test + pool) for train, test in zip(dealt, tests, strict=True)]
    else:
        splits = [train_test(own, data.y, table.test_share, seed, k) for k, own in enumerate(dealt)]
    _check_enough(splits)
    return splits


def _own(table: PartitionTable, data: Dataset, clients: int, seed: int) -> list[ClientSplit]:
    """Each client's data as it was given; a client without test samples gets some of its own."""
    if data.owners is None:
        raise UserError(
            f"partition.kind is 'own', and {data.name} is not given for each client apart; give a list, or choose another kind"
        )
    if table.kind != "own":
        raise UserError(f"the data of each client is given apart, and partition.kind is {table.kind!r}; set it to 'own'")
    if len(data.owners) != clients:
        raise UserError(f"clients is {clients}, and the data of {len(data.owners)} is given; set clients = {len(data.owners)}")
    splits = [
        train_test(own.train, data.y, table.test_share, seed, k) if own.test is None else ClientSplit(own.train, own.test)
        for k, own in enumerate(data.owners)
    ]
    _check_enough(splits)
    return splits


def _kept(table: PartitionTable, data: Dataset, pool: int, seed: int) -> Indices:
    """The samples to distribute: the pool without those set aside."""
    if not table.set_aside:
        return np.arange(pool)
    if table.set_aside >= pool:
        raise UserError(f"partition.set_aside is {table.set_aside}, all of the {pool} samples of {data.name}; choose fewer")
    return np.sort(generator(seed, "set-aside").permutation(pool)[table.set_aside :])


def deal(y: Indices, shares: NDArray[np.float64], rng: np.random.Generator) -> list[Indices]:
    """Divides each class at the rounded cumulative shares, so that every sample goes to exactly one client.

    `shares` has a row per class and a column per client; rows sum to 1.
    """
    clients = shares.shape[1]
    owner = np.zeros(len(y), dtype=np.int64)
    for label, row in enumerate(shares):
        members = rng.permutation(np.flatnonzero(y == label))
        ends = np.round(np.cumsum(row) * len(members)).astype(np.int64)
        ends[-1] = len(members)
        owner[members] = np.repeat(np.arange(clients), np.diff(ends, prepend=0))
    # One sort for all clients, as there may be ten thousand of them.
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])


def _class_shares(table: PartitionTable, data: Dataset, y: Indices, clients: int, seed: int) -> NDArray[np.float64]:
    classes, each = len(data.classes), table.classes_per_client
    if each > classes:
        raise UserError(f"partition.classes_per_client is {each}, and {data.name} has {classes} classes; choose 1 to {classes}")
    if each * clients < classes:
        raise UserError(
            f"partition.classes_per_client × clients is {each} × {clients} = {each * clients}, less than the {classes} "
            f"classes of {data.name}, so some class would have no client; raise one of them"
        )
    rng = generator(seed, "partition")
    holds = class_holders(classes, clients, each, rng)
    shares = np.where(holds, rng.uniform(*table.shares, size=holds.shape), 0.0)
    shares /= shares.sum(axis=1, keepdims=True)
    counts = np.bincount(y, minlength=classes)
    # After rounding, each client must have a sample of each of its classes.
    for label in np.flatnonzero((np.where(holds, shares, 1.0) * counts[:, None]).min(axis=1) < 1):
        raise UserError(
            f"class {data.classes[label]!r} has {counts[label]} samples for {holds[label].sum()} clients, too few to give each "
            "of them one; choose fewer clients or fewer classes for each"
        )
    return shares


def class_holders(classes: int, clients: int, each: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Assigns classes to clients: each client draws from the classes that have the fewest clients so far.

    >>> class_holders(10, 5, 4, generator(0, "doc")).sum(axis=0)
    array([4, 4, 4, 4, 4])
    """
    holds = np.zeros((classes, clients), dtype=bool)
    holders = np.zeros(classes, dtype=np.int64)  # a running count: summing over clients each time would be quadratic
    for client in range(clients):
        for _ in range(each):
            free = np.flatnonzero(~holds[:, client])
            label = rng.choice(free[holders[free] == holders[free].min()])
            holds[label, client] = True
            holders[label] += 1
    return holds


def _dirichlet_shares(table: PartitionTable, data: Dataset, y: Indices, clients: int, seed: int) -> NDArray[np.float64]:
    """Dirichlet shares, class by class, over the clients that still have less than an equal part of all samples."""
    rng = generator(seed, "partition")
    counts = np.bincount(y, minlength=len(data.classes))
    if table.min_samples * clients > len(y):
        raise UserError(
            f"partition.min_samples × clients is {table.min_samples} × {clients} = {table.min_samples * clients}, more than "
            f"the {len(y)} samples of {data.name}; lower one of them"
        )
    for _ in range(table.tries):
        has = np.zeros(clients)
        shares = np.zeros((len(counts), clients))
        for label in range(len(counts)):
            shares[label] = _one_class(table, rng, has < len(y) / clients)
            has += np.diff(np.round(np.cumsum(shares[label]) * counts[label]), prepend=0)
        if has.min() >= table.min_samples:
            return shares
    raise UserError(
        f"a Dirichlet split with partition.alpha = {table.alpha} gave some client fewer than {table.min_samples} samples in "
        f"each of {table.tries} tries; raise alpha, or lower partition.min_samples or clients"
    )


def _one_class(table: PartitionTable, rng: np.random.Generator, open_: NDArray[np.bool_]) -> NDArray[np.float64]:
    for _ in range(table.tries):
        row: NDArray[np.float64] = rng.dirichlet(np.full(len(open_), table.alpha)) * open_
        if row.sum() > 0:
            shares: NDArray[np.float64] = row / row.sum()
            return shares
    # With a tiny α each draw picks a single client, which may be full every time.
    raise UserError(
        f"partition.alpha = {table.alpha} is too small: {table.tries} draws in a row went to clients that have enough already; "
        "raise it"
    )


def _iid_shares(table: PartitionTable, data: Dataset, y: Indices, clients: int, seed: int) -> NDArray[np.float64]:
    """Equal shares; the clients that get the remaining samples of each class are drawn at random."""
    rng = generator(seed, "partition")
    counts = np.bincount(y, minlength=len(data.classes))
    dealt = np.tile(counts[:, None] // clients, (1, clients)).astype(np.float64)
    turn, order = 0, rng.permutation(clients)
    for label, left_over in enumerate(counts % clients):
        dealt[label, order[(turn + np.arange(left_over)) % clients]] += 1
        turn += left_over
    return dealt / np.maximum(counts, 1)[:, None]


_SHARES = {"class": _class_shares, "dirichlet": _dirichlet_shares, "iid": _iid_shares}


def train_test(own: Indices, y: Indices, share: float, seed: int, client: int) -> ClientSplit:
    """Splits a client's samples class by class; every class keeps a training sample, and the client gets a test sample."""
    if not len(own):
        return ClientSplit(own, own)
    rng = generator(seed, "train-test", client)
    by_class = own[np.argsort(y[own], kind="stable")]
    cuts = [0, *(np.flatnonzero(np.diff(y[by_class])) + 1).tolist(), len(own)]
    members = [rng.permutation(by_class[start:stop]) for start, stop in pairwise(cuts)]
    sizes = np.diff(cuts)
    quota = share * sizes
    tests = np.minimum(np.floor(quota).astype(np.int64), sizes - 1)
    target = max(1, round(share * len(own)))
    while (missing := target - tests.sum()) > 0 and len(able := np.flatnonzero(tests < sizes - 1)):
        # Classes furthest below their quota come first, each once per pass. Ties are random: else clients of few samples
        # would all be tested on the first classes.
        tests[able[np.lexsort((rng.random(len(able)), (tests - quota)[able]))[:missing]]] += 1
    if not tests.sum() and len(own) > 1:  # one sample per class: one class gets no training sample
        tests[rng.integers(len(tests))] = 1
    test = np.concatenate([part[:n] for part, n in zip(members, tests, strict=True)])
    train = np.concatenate([part[n:] for part, n in zip(members, tests, strict=True)])
    return ClientSplit(np.sort(train), np.sort(test))


def _check_enough(splits: Sequence[ClientSplit]) -> None:
    for client, own in enumerate(splits):
        if not len(own.train) or not len(own.test):
            raise UserError(
                f"client {client} has {len(own.train)} training and {len(own.test)} test samples, and needs one of each at "
                "least; choose fewer clients, or a split that is less uneven"
            )


def split_json(splits: Sequence[ClientSplit]) -> str:
    """The split as JSON, which another run can use as `partition.file`."""
    return json.dumps({"clients": [{"train": own.train.tolist(), "test": own.test.tolist()} for own in splits]})


def _given(table: PartitionTable, data: Dataset, clients: int, seed: int) -> list[ClientSplit]:
    path = user_path(str(table.file), "partition.file")
    entries = read_json(path, "partition.file")
    entries = entries.get("clients") if isinstance(entries, dict) else entries
    if not isinstance(entries, list) or len(entries) != clients:
        found = f"{len(entries)} clients" if isinstance(entries, list) else "no list"
        raise UserError(f"{path} must hold a list of sample numbers for each of the {clients} clients; it holds {found}")
    splits = []
    for client, entry in enumerate(entries):
        if isinstance(entry, dict) and set(entry) == {"train", "test"}:
            splits.append(ClientSplit(*(_indices(entry[part], path, client, len(data.y)) for part in ("train", "test"))))
        else:
            splits.append(train_test(_indices(entry, path, client, len(data.y)), data.y, table.test_share, seed, client))
    everything = np.concatenate([part for own in splits for part in (own.train, own.test)])
    labels, times = np.unique(everything, return_counts=True)
    if (times > 1).any():
        raise UserError(f"{path} gives sample {labels[times > 1][0]} more than once; each sample belongs to one client")
    _check_enough(splits)
    return splits


def _indices(entry: Any, path: Path, client: int, samples: int) -> Indices:
    good = isinstance(entry, list) and all(type(i) is int and 0 <= i < samples for i in entry)
    if not good:
        raise UserError(f"{path}: client {client}'s entry must be a list of sample numbers from 0 to {samples - 1}")
    return np.sort(np.array(entry, dtype=np.int64))
