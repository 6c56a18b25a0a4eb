"""Values between kernels: which of them may share memory, and plans that do."""

from __future__ import annotations

import random
from itertools import combinations

import hypothesis.strategies as st
import numpy as np
from hypothesis import example, given

from kernsearch import backends, launch, records, registry
from kernsearch.candidate import lower
from kernsearch.derive import derive
from kernsearch.feasible import FeasibleSpace
from kernsearch.gates.reference import Reference
from kernsearch.records import fingerprint
from kernsearch.records.lookup import Hit
from kernsearch.runtime.host import HostPlan
from kernsearch.workspace import ALIGNMENT, laid_out

NAMES = "PQRSTU"


@st.composite
def calls(draw):
    sizes = draw(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2000), max_size=len(NAMES)))
    kernels = draw(st.lists(st.frozensets(st.sampled_from(NAMES)), min_size=1, max_size=6))
    return sizes, kernels


def there(name, kernels):
    """Kernels, from the first to the last, during which a value must stay as it is."""
    users = [at for at, used in enumerate(kernels) if name in used]
    return set(range(users[0], users[-1] + 1)) if users else set()


@given(calls())
@example(({"P": 100, "Q": 100, "R": 100}, [{"P"}, {"P", "Q"}, {"Q", "R"}, {"R"}]))
def test_values_that_are_there_at_once_lie_apart_and_at_aligned_places(call):
    sizes, kernels = call
    offsets, size = laid_out(sizes, kernels)
    assert offsets.keys() == sizes.keys()
    for name, start in offsets.items():
        assert start % ALIGNMENT == 0 and start >= 0 and start + sizes[name] <= max(size, start)
    for a, b in combinations(sizes, 2):
        if there(a, kernels) & there(b, kernels) and sizes[a] and sizes[b]:
            assert offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a]
    assert size <= sum(-(-each // ALIGNMENT) * ALIGNMENT for each in sizes.values())


def test_values_that_are_never_there_at_once_share_memory():
    chain = [{"P"}, {"P", "Q"}, {"Q", "R"}, {"R"}]
    offsets, size = laid_out({"P": 1000, "Q": 10, "R": 900}, chain)
    assert offsets["P"] == offsets["R"] == 0 and offsets["Q"] == 1024 and size == 1034


def test_a_plan_of_many_kernels_takes_less_than_all_its_values_and_is_right():
    backend, device = backends.resolve("cpu")
    problem = registry.problem("attention", (1, 2, 33, 47, 16), "float32", backend="cpu")
    op = registry.op("attention")
    sizes = {**op.sizes(problem), "ITEMSIZE": 4, "THREADS": device.threads}
    variant = max(derive(problem, op, registry.templates("cpu")).variants, key=lambda each: each.name.count("+"))
    config = FeasibleSpace(variant.params, variant.constraints, device, sizes).sample(random.Random(0))
    plan = lower(variant, config, problem, backend, device)
    assert len(plan.workspace) > 2
    call, _ = launch.call_at(plan, problem.shape, device.threads)
    _, alone = laid_out(call.workspace, [kernel.buffers for kernel in call.kernels])  # without what kernels scratch on
    assert alone < sum(call.workspace.values()) and alone <= call.workspace_bytes
    made = {"problem": problem, "fingerprint": fingerprint.here(plan, device), "plan": plan, "variant": variant.name}
    record = records.Record(**made, config=config, derivation=(), created=records.now())
    inputs, scalars = op.inputs[0].make(problem, np.random.default_rng(0))
    (block,) = Reference(op, problem, inputs, scalars).blocks()
    given = [inputs[o.name] for o in plan.operands if o.role == "input"]
    got = HostPlan(problem, device, Hit("chosen", record, ()), "compatible")(*given, **scalars)
    ((_, wanted),), ((_, allowed),) = block.expected.items(), block.allowed.items()
    assert (np.abs(got - wanted) <= allowed).all()
