"""What a library to compare with is: its name, what it needs, and how it prepares a problem."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import registry
from ..errors import PeerError

if TYPE_CHECKING:
    import numpy as np

    from ..problem import Problem

OURS = "kernsearch"
DEFAULT = "default"  # kernsearch without a record: the default candidate
# Of the largest value, by the result's dtype: what libraries may differ by and still compute the same. Two that round
# intermediate values differ by some units in the last place.
AGREE = {"float16": 4e-3, "bfloat16": 2e-2}
AGREE_ELSE = 1e-3


class Ready(NamedTuple):
    """A problem prepared in a library on the CPU: a call without arguments, and the array it writes."""

    call: Callable[[], Any]
    output: np.ndarray
    details: Mapping[str, str] = {}


class Copy(NamedTuple):
    """One set of operands on a device: a call that launches onto the library's current stream, and its result.

    fetch   () -> the result on the host, an array of float32 or float64
    """

    call: Callable[[], Any]
    fetch: Callable[[], np.ndarray]


def as_float(array: np.ndarray) -> np.ndarray:
    """float32, or float64 as it is."""
    return array if array.itemsize > 4 else array.astype("float32")


class OnDevice(NamedTuple):
    """A problem prepared in a library on a device.

    copy     () -> operands of its own, of the same values every time
    details  what a person is told of the choice made
    """

    copy: Callable[[], Copy]
    details: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Peer:
    """A library that computes an op.

    needs     problem -> names of the packages it takes, the library itself first; may raise PeerError
    prepare   (problem, inputs by name, scalars, threads) -> Ready; runs in the child, loads the library. For a device
              the last argument is its index, and the result OnDevice
    describe  () -> version and whatever tells how the library runs here; after `prepare`
    own       another way to call kernsearch itself, no library to compare with
    graphs    on a device: whose streams and graphs the library launches onto, "torch" or "cupy"
    """

    name: str
    needs: Callable[[Problem], tuple[str, ...]]
    prepare: Callable[[Problem, Mapping[str, np.ndarray], Mapping[str, float], int], Any]
    describe: Callable[[], str] = lambda: ""
    own: bool = False
    graphs: str = "torch"


def peers_of(op: str, backend: str = "cpu") -> dict[str, Peer]:
    """What an op can be compared with, by name: PEERS of `peers.py` in its folder, on a device of `cuda_peers.py`.

    Raises ProblemError for an unknown op.
    """
    module = registry.companion(op, "peers" if backend == "cpu" else f"{backend}_peers")
    return {peer.name: peer for peer in getattr(module, "PEERS", ())}


def check(problem: Problem, against: Sequence[str], backend: str = "cpu") -> None:
    """Raise PeerError for a library that is unknown or lacks a package."""
    known = {name: peer for name, peer in peers_of(problem.op, backend).items() if not peer.own}
    if not against:
        raise PeerError(f"nothing to compare with: want {', '.join(known) or 'a peer, of which there is none'}")
    where = "" if backend == "cpu" else f" on {backend}"
    for name in against:
        if name not in known:
            raise PeerError(f"peer {name!r}: {problem.op} compares with {', '.join(known) or 'none'}{where}")
        for package in known[name].needs(problem):
            if importlib.util.find_spec(package) is None:
                raise PeerError(f"peer {name!r} needs the package {package!r}: pip install {package}")


def agree(problem: Problem, ours: str, our: Sequence[float], name: str, their: Sequence[float]) -> None:
    """Raise PeerError unless both computed the same, seen through a random projection."""
    allowed = AGREE.get(problem.dtype, AGREE_ELSE)
    scale = max((abs(x) for x in our), default=0.0)
    off = [abs(x - y) for x, y in zip(our, their, strict=True)]
    if not all(error <= allowed * scale for error in off):  # false for NaN
        worst = next((error for error in off if not isfinite(error)), max(off))
        raise PeerError(f"peer {name!r} computes something else than {ours} for {problem.key}: off by {worst:.2g}")
