"""From a binding, a template and a config to a kernel plan on CUDA: launches, maps, sizes, scratch, defines.

The generated header is made in `header`, which says what it defines.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from ... import sources
from ...binding import Binding
from ...device import Device
from ...launch import SCRATCH
from ...plan import KernelPlan, Launch
from ...sizes import evaluate
from ..chained import is_chained
from ..expressions import fold
from ..views import GROUPS
from .boxes import assumptions as assumptions_of_box
from .boxes import box
from .header import Extras, header
from .places import assumptions, copy_bytes, packed_roles, place, tensor_map
from .row_header import word_elements

if TYPE_CHECKING:
    from ...template import Template

WORDS = ("ITEMSIZE",)  # names in a template's expressions that stay names in the plan


def kernel_plan(binding: Binding, template: Template, config: Mapping[str, int], device: Device) -> KernelPlan:
    """The launches of one kernel. `config` may hold letters of other kernels of the variant.

    Expressions of the template may name groups (M N K B S: extents), OUTPUTS (elements of the largest output), its
    letters, facts of the device in capitals, ITEMSIZE, and, where a kernel works on rows, WORD: the elements of a row
    that move at once. Raises ValueError for an array of a dtype that kernels do not read, and Rejected where the
    template's maps cannot hold an operand.
    """
    letters = dict(config)
    names = _names(binding, letters, device)
    if any("WORD" in launch.shared for launch in template.launches):
        names["WORD"] = word_elements(binding)
    packed = {role: place(binding, role) for role in packed_roles(binding, template)}
    copies, end = {}, "0"
    for role, at in packed.items():
        copies[role] = end
        end = " + ".join(part for part in (end, copy_bytes(binding, at, letters)) if part != "0")
    boxes = [box(binding, tile, letters) for tile in template.maps] if is_chained(binding) else []
    made = [] if boxes else [tensor_map(binding, tile, letters, copies.get(tile.role)) for tile in template.maps]
    scratch = " + ".join(part for part in (end, fold(template.scratch, names)) if part != "0") or "0"
    arrays = [*(array.name for array in binding.arrays), *([SCRATCH] if scratch != "0" else [])]
    extents = [fold(extent, letters) for extent in binding.extents.values()]
    strides = [f"{array.name}.{axis}" for array in binding.arrays for axis in sorted(array.axes)]
    outputs = {root.array for root in binding.roots}
    rules = [rule for map_, at in made for rule in assumptions(map_, at, written=map_.buffer in outputs)]
    rules += [rule for at in boxes for rule in assumptions_of_box(at, binding)]
    extras = Extras(tuple(packed.values()), tuple(made), tuple(boxes), has_scratch=scratch != "0")
    return KernelPlan(
        template=template.name,
        source=template.source,
        tokens=_tokens(template.source),
        entry=template.entry,
        header=header(binding, template.name, extras),
        defines={param.name: config[param.name] for param in (*template.params, *template.knobs)},
        buffers=tuple(arrays),
        sizes=(*extents, *strides),
        scalars=binding.scalars,
        scratch=scratch,
        flags=template.flags,
        launches=tuple(_launch(launch, names) for launch in template.launches),
        maps=(*(map_ for map_, _ in made), *(at.made for at in boxes)),
        assumes=tuple(dict.fromkeys(rules)),
    )


@lru_cache(maxsize=256)
def _tokens(source: str) -> str:
    """Read once a process, as a search makes thousands of plans of one source."""
    return sources.tokens(source)


def _launch(launch: Launch, names: Mapping[str, int | str]) -> Launch:
    x, y, z = (fold(text, names) for text in launch.grid)
    cluster = tuple(evaluate(fold(str(blocks), names), {}) for blocks in launch.cluster)
    return Launch(
        entry=launch.entry,
        grid=(x, y, z),
        block=fold(launch.block, names),
        shared=fold(launch.shared, names),
        cluster=cluster,  # type: ignore[arg-type]
        overlap=launch.overlap,
    )


def _names(binding: Binding, letters: Mapping[str, int], device: Device) -> dict[str, int | str]:
    """What each name in a template's expressions stands for, but for those that a call decides."""
    facts = {name.upper(): value for name, value in device.facts.items() if type(value) is int}
    names: dict[str, int | str] = {name: value for name, value in facts.items() if name not in WORDS}
    groups = {**dict.fromkeys(GROUPS, ()), **binding.groups, "S": tuple(binding.slabs.values())}
    extents = {axis: fold(extent, letters) for axis, extent in binding.extents.items()}
    for group, axes in groups.items():
        names[group] = _product([extents[axis] for axis in axes])
    outputs = [_product([extents[axis] for axis in root.axes]) for root in binding.roots]
    distinct = list(dict.fromkeys(map(str, outputs)))
    names["OUTPUTS"] = distinct[0] if len(distinct) == 1 else f"max({', '.join(distinct)})"
    return {**names, **letters}


def _product(extents: list[str]) -> int | str:
    if all(extent.isdigit() for extent in extents):
        return prod(map(int, extents))
    return " * ".join(f"({extent})" for extent in extents)
