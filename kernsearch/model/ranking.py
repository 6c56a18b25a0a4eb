"""The model: a roofline over ceilings and what a program's loops move, to seed the search and to pick the default.

A kernel takes as long as its slowest resource: arithmetic, given the share of the peak that its inner loop can reach
and how evenly its tiles divide among threads; and each memory level, given what the loop nest moves through it. The
others overlap with it, but not wholly; packing and starting do not overlap at all. Kernels run one after another.

The model ranks; it does not promise. What it says is checked by measuring, never used in place of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from ..device import Device
from ..feasible import FeasibleSpace
from ..space import Config, Sizes
from .blocks import DeviceKernel
from .ceilings import Ceilings
from .roofline import KernelRoofline

if TYPE_CHECKING:
    from ..derive import Variant
    from ..template import Matched

ENUMERATED = 1024  # configs of a space that are all predicted; an eighth on a device, whose spaces are hard to list
GUESSED = 2000  # random ones of a larger space are tried until
SAMPLED = 32  # so many are feasible; these are improved letter by letter
CLIMBED = 4  # of which so many are improved at a time
CLIMB_STEPS = 12
KEPT = 48  # of a ranking
APART = 2  # letters in which two configs of a ranking differ at least
SLABS_ASSUMED = 4  # of a reduction whose number of slabs another kernel's config says
PARTITIONS = 24  # of which variants are judged where there are many: those that come first
GLANCES = 6  # configs by which a kernel with a template is judged where there are many variants


@dataclass(frozen=True)
class Prediction:
    """What the model says of a candidate.

    seconds   of all kernels
    bound     what takes longest: "compute", a memory level, "packing" or "start"
    parts     seconds by resource, summed over the kernels
    flops     operations, padding not counted; bytes: moved between memory and the caches
    """

    seconds: float
    bound: str
    parts: Mapping[str, float] = field(default_factory=dict)
    flops: float = 0.0
    bytes: float = 0.0
    launches: int = 1


def predict(variant: Variant, config: Config, device: Device, sizes: Sizes, ceilings: Ceilings) -> Prediction:
    """Seconds of one candidate at these sizes (size letters, THREADS, ITEMSIZE)."""
    return predict_all(variant, [config], device, sizes, ceilings)[0]


def predict_all(
    variant: Variant, configs: Sequence[Config], device: Device, sizes: Sizes, ceilings: Ceilings
) -> list[Prediction]:
    """The same for many configs at once; thousands take a fraction of a second."""
    if not configs:
        return []
    costs = KernelRoofline if device.backend == "cpu" else DeviceKernel
    kernels = [costs(matched, configs, device, sizes, ceilings).best() for matched in variant.kernels]
    total = sum((k.seconds for k in kernels), start=np.zeros(len(configs)))
    names = tuple(dict.fromkeys(name for k in kernels for name in k.parts))
    parts = {
        name: sum((k.parts[name] for k in kernels if name in k.parts), start=np.zeros(len(configs))) for name in names
    }
    slowest = np.argmax(np.stack([parts[name] for name in names]), axis=0)
    moved = sum((k.moved for k in kernels), start=np.zeros(len(configs)))
    flops = sum(k.flops for k in kernels)
    return [
        Prediction(
            float(total[i]),
            names[slowest[i]],
            {name: float(values[i]) for name, values in parts.items()},
            flops,
            float(moved[i]),
            len(kernels),
        )
        for i in range(len(configs))
    ]


def foremost(
    variants: Sequence[Variant], device: Device, sizes: Sizes, ceilings: Ceilings, count: int
) -> tuple[Variant, ...]:
    """The `count` variants of which the model expects most, in the order given; all when there are no more.

    Kernels meet in memory only, so a variant is worth what its kernels are, and each of these is looked at once with
    each template: a few of its configs. Of variants with the same templates the best comes before the second of any.
    Only those of the first partitions are judged: in a derivation they move the fewest bytes.
    """
    if len(variants) <= count:
        return tuple(variants)
    first = set(list(dict.fromkeys(variant.partition.key for variant in variants))[:PARTITIONS])
    variants = [variant for variant in variants if variant.partition.key in first]
    known: dict[tuple[str, str], float] = {}

    def seconds(variant: Variant) -> float:
        total, partition = 0.0, variant.partition
        for template, kernel in zip(variant.templates, partition.kernels, strict=True):
            key = (kernel.key, template.name)
            if key not in known:
                matched = template.match(partition, kernel)
                known[key] = math.inf if matched is None else _glance(matched, device, sizes, ceilings)
            total += known[key]
        return total

    ordered = sorted((seconds(variant), at) for at, variant in enumerate(variants))
    alike: dict[tuple[str, ...], int] = {}
    turns = []
    for place, (_, at) in enumerate(ordered):
        names = tuple(template.name for template in variants[at].templates)
        turns.append((alike.get(names, 0), place, at))
        alike[names] = alike.get(names, 0) + 1
    return tuple(variants[at] for at in sorted(at for _, _, at in sorted(turns)[:count]))


def _glance(matched: Matched, device: Device, sizes: Sizes, ceilings: Ceilings) -> float:
    """Seconds of a kernel under the best of a few configs; infinite when none is feasible."""
    template, program = matched.template, matched.program
    space = FeasibleSpace((*template.params, *template.knobs), matched.constraints, device, sizes)
    drawn = list(islice(space.guesses(random.Random(0), GUESSED // 10), GLANCES)) or list(islice(space.iterate(), 1))
    if not drawn:
        return math.inf
    slabs = {program.extents[slab]: SLABS_ASSUMED for slab in program.slabs}
    costs = KernelRoofline if device.backend == "cpu" else DeviceKernel
    return float(
        np.min(costs(matched, [{**slabs, **config} for config in drawn], device, sizes, ceilings).best().seconds)
    )


def rank(
    variant: Variant,
    space: FeasibleSpace,
    device: Device,
    sizes: Sizes,
    ceilings: Ceilings,
    *,
    seed: int = 0,
    apart: int = APART,
) -> list[tuple[Prediction, dict[str, int]]]:
    """Feasible configs of a variant with what the model says, the fastest first; equal times by config.

    A small space is predicted whole, a large one sampled and improved step by step. After the first, a config is left
    out when it differs from a better one in fewer than `apart` letters: seeds should not all say the same.
    """
    found = _candidates(variant, space, device, sizes, ceilings, seed)
    ordered = sorted(found, key=lambda pair: (pair[0].seconds, tuple(pair[1].items())))
    kept: list[tuple[Prediction, dict[str, int]]] = []
    for prediction, config in ordered:
        if len(kept) == KEPT:
            break
        if not alike(config, (other for _, other in kept), apart):
            kept.append((prediction, config))
    return kept


def alike(config: Config, others: Iterable[Config], apart: int = APART) -> bool:
    """The config differs from one of the others, of the same variant, in fewer than `apart` of its letters."""
    least = min(apart, len(config))
    return any(sum(config[name] != other[name] for name in config) < least for other in others)


def _candidates(
    variant: Variant, space: FeasibleSpace, device: Device, sizes: Sizes, ceilings: Ceilings, seed: int
) -> list[tuple[Prediction, dict[str, int]]]:
    def told(configs: list[dict[str, int]]) -> list[tuple[Prediction, dict[str, int]]]:
        return list(zip(predict_all(variant, configs, device, sizes, ceilings), configs, strict=True))

    few = ENUMERATED if device.backend == "cpu" else ENUMERATED // 8
    if not space.exceeds(few):
        first = list(islice(space.iterate(), few + 1))
        if len(first) <= few:
            return told(first)
    rng = random.Random(seed)
    drawn = list(islice(space.guesses(rng, GUESSED), SAMPLED))
    drawn = drawn or list(islice(space.iterate(), ENUMERATED))
    known = {tuple(c.items()): (p, c) for p, c in told(drawn)}
    improved: set[tuple[tuple[str, int], ...]] = set()
    for _ in range(CLIMB_STEPS):
        best = sorted((pair for key, pair in known.items() if key not in improved), key=lambda pair: pair[0].seconds)
        fresh: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
        for _, config in best[:CLIMBED]:
            improved.add(tuple(config.items()))
            fresh.update((tuple(c.items()), c) for c in _one_letter_away(space, config))
        wanted = [config for key, config in fresh.items() if key not in known]
        if not wanted:
            break
        known |= {tuple(c.items()): (p, c) for p, c in told(wanted)}
    return list(known.values())


def _one_letter_away(space: FeasibleSpace, config: dict[str, int]) -> Iterator[dict[str, int]]:
    """The feasible configs that differ in one letter."""
    for name, values in space.domains.items():
        for value in values:
            moved = {**config, name: value}
            if value != config[name] and space.contains(moved) is None:
                yield moved
