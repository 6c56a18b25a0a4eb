"""What a folder under `spaces/` declares: parameters, constraints with their reasons, and ops."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .device import Device
from .errors import ProblemError
from .problem import DIGITS, Option, Problem

if TYPE_CHECKING:
    import numpy as np

    from .program import Program

Config = Mapping[str, int]  # parameter letter to value
Sizes = Mapping[str, int]  # size letter to value, plus THREADS and ITEMSIZE


@dataclass(frozen=True)
class Param:
    """A tunable number: its letter, its domain in ascending order, and what it is."""

    name: str
    values: tuple[int, ...]
    what: str


@dataclass(frozen=True)
class Access:
    """What a warp touches with one load or store.

    addresses  in bytes, one a thread, from the start of shared memory or of anything aligned to 128 bytes
    itemsize   bytes of each
    memory     of memory instead of shared memory: it passes the first-level cache line by line
    """

    addresses: tuple[int, ...]
    itemsize: int
    memory: bool = False


@dataclass(frozen=True)
class Constraint:
    """`holds(config, device, sizes)` must be true; `reason` is what a person reads when it is not."""

    reason: str
    holds: Callable[[Config, Device, Sizes], bool]


def covers(param: Param, size: str) -> Callable[[Config, Device, Sizes], bool]:
    """For a constraint: values up to the first that covers the size, as larger ones would be the same kernel again."""

    def holds(config: Config, device: Device, sizes: Sizes) -> bool:
        smaller = [value for value in param.values if value < config[param.name]]
        return not smaller or smaller[-1] < sizes[size]

    return holds


@dataclass(frozen=True)
class OptionSpec:
    """An option of an op. `parse` returns the canonical value or raises ProblemError."""

    name: str
    default: Option
    parse: Callable[[Any], Option]
    what: str
    values: tuple[Option, ...] = ()  # all canonical values, the default first


def one_of(name: str, values: tuple[str, ...], **also: str) -> Callable[[Any], Option]:
    """Parses an option that is one of a few words, in any case; `also` are other words for some of them."""

    def parse(value: Any) -> Option:
        word = str(value).lower()
        word = also.get(word, word)
        if word not in values:
            raise ProblemError(f"{name} {value!r}: want one of {', '.join(values)}")
        return word

    return parse


@dataclass(frozen=True)
class InputSet:
    """One way to fill the inputs for the gates.

    `make(problem, rng)` returns the operands by name (in the dtype and logical axis order of the problem) and the
    scalars. `exact`: values are small whole numbers, so the output must equal the reference unless the textbook has
    a function like exp in it. `mean`: the most that the mean error of many elements may be, as a share of what is
    allowed: it shows what all have in common, which the largest error hides.
    """

    name: str
    make: Callable[[Problem, np.random.Generator], tuple[dict[str, np.ndarray], dict[str, float]]]
    exact: bool = False
    mean: float | None = None


class InputSets(Sequence[InputSet]):
    """`INPUTS` of a module, which is loaded when they are first looked at."""

    def __init__(self, module: str):
        self._module = module

    def __len__(self) -> int:
        return len(self._loaded)

    def __getitem__(self, index: Any) -> Any:
        return self._loaded[index]

    @property
    def _loaded(self) -> tuple[InputSet, ...]:
        found: tuple[InputSet, ...] = importlib.import_module(self._module).INPUTS
        return found


@dataclass(frozen=True)
class Op:
    """An op: how a problem is spelled, its textbook program, and what correct means for it.

    letters   size letters in shape order: ("M", "N", "K")
    root      problem -> textbook Program; imports networkx, so it is called only while deriving
    bound     (problem, inputs, scalars, reference) -> elementwise allowed absolute error, by output name; float64
    inputs    the input sets of the gates, the random normal one first
    edges     (problem, config) -> awkward small shapes that a general template must get right, the largest last
    textbook  (problem, inputs, scalars) -> outputs by plain loops: checks the reference itself, on tiny shapes
    identity  (problem, inputs, scalars, outputs, rng) -> error of a cheap randomized identity that the outputs obey,
              as a share of what is allowed, or None where there is none for this problem; asked for the first input
              set only, and above 1 everything is compared
    spelled   (sizes, options) as a person gives them -> (op, shape, options): shorter shapes, options that name a
              problem of another op; None where they are the op's own
    spellings options that `spelled` takes besides
    useful_bytes  of an op that computes nothing, what must be read and written: speed is told in bytes then
    typical   by backend, shapes that have shipped defaults, the commonest first; the nearest one serves
    """

    name: str
    letters: tuple[str, ...]
    dtypes: Mapping[str, tuple[str, ...]]  # by backend, the default first
    options: tuple[OptionSpec, ...]
    root: Callable[[Problem], Program]
    flops: Callable[[Problem], float]
    bound: Callable[..., dict[str, np.ndarray]]
    inputs: Sequence[InputSet]
    edges: Callable[[Problem, Config], tuple[tuple[int, ...], ...]]
    what: str = ""
    textbook: Callable[..., dict[str, np.ndarray]] | None = None
    identity: Callable[..., float | None] | None = None
    spellings: tuple[OptionSpec, ...] = ()
    spelled: Callable[[tuple[int, ...], dict[str, Any]], tuple[str, tuple[int, ...], dict[str, Any]]] | None = None
    useful_bytes: Callable[[Problem], float] | None = None
    typical: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    public: tuple[str, ...] = field(default=())  # functions of the op's folder that `kernsearch` re-exports

    def problem(
        self, shape: tuple[int, ...], dtype: str | None = None, *, backend: str = "cpu", **options: Any
    ) -> Problem:
        """A checked problem. Raises ProblemError in one line for anything that does not fit."""
        like = "x".join(self.letters)
        if len(shape) != len(self.letters):
            raise ProblemError(f"{self.name} shape {'x'.join(map(str, shape))}: want {len(self.letters)} sizes, {like}")
        if not all(1 <= int(n) < 10**DIGITS for n in shape):
            want = f"sizes from 1 to {DIGITS} digits"
            raise ProblemError(f"{self.name} shape {'x'.join(map(str, shape))}: want {want}, {like}")
        allowed = self.dtypes.get(backend, ())
        dtype = dtype or (allowed[0] if allowed else "float32")
        if dtype not in allowed:
            raise ProblemError(f"dtype {dtype!r}: {self.name} on {backend} takes {', '.join(allowed) or 'none'}")
        specs = {spec.name: spec for spec in self.options}
        for name in options:
            if name not in specs:
                raise ProblemError(f"option {name!r}: {self.name} takes {', '.join(specs) or 'none'}")
        chosen = {name: spec.parse(options.get(name, spec.default)) for name, spec in specs.items()}
        return Problem(self.name, shape, dtype, tuple(chosen.items()))

    def work(self, problem: Problem) -> tuple[float, str]:
        """What speed is told in, and its unit: operations ("FLOP"), or useful bytes ("B")."""
        if self.useful_bytes is not None:
            return self.useful_bytes(problem), "B"
        return self.flops(problem), "FLOP"

    def sizes(self, problem: Problem) -> dict[str, int]:
        return dict(zip(self.letters, problem.shape, strict=True))


def zeroed(op: Op) -> Op:
    """The op whose first input set, the one that is timed, is 0 all over. Its scalars stay."""
    import numpy as np

    first = op.inputs[0]

    def zeros(problem: Problem, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        arrays, scalars = first.make(problem, rng)
        return {name: np.zeros_like(array) for name, array in arrays.items()}, scalars

    return replace(op, inputs=(InputSet("zeros", zeros), *op.inputs))
