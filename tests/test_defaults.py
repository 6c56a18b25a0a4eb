"""Shipped defaults: what the generator makes, one for every problem and every array, and fit to run."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod

import msgspec
import pytest

from kernsearch import backends, launch, registry
from kernsearch.device import Device, lacks
from kernsearch.errors import CompilerError
from kernsearch.problem import Problem
from kernsearch.records import Record, classes, defaults, fingerprint, lookup, upkeep
from kernsearch.records.classes import CLASSES, DeviceClass
from kernsearch.records.packing import Packed, pack

OPS = [op for op in registry.ops().values() if op.typical]
GEMM = registry.op("gemm")
DEVICE = backends.resolve("cpu")[1]
UNITS = ("gemm", "bmm")  # have kernels for the units of classes that extend others
EVERY = pytest.mark.parametrize(
    ("op", "of"),
    [
        pytest.param(op, of, id=f"{of.arch}-{op.name}")
        for of in CLASSES
        for op in OPS
        if of.backend in op.typical and (not of.unit or op.name in UNITS)
    ],
)
CUDA = [of for of in CLASSES if of.backend == "cuda"]
AGAIN = "python -m kernsearch.records.defaults"


def path_of(op: str, of: DeviceClass):
    return lookup.shipped_folder() / "defaults" / of.arch / f"{op}.json"


@cache
def shipped(op: str, of: str, backend: str) -> list[Record]:
    packed = Packed(path_of(op, classes.of(backend, of)).read_bytes())
    return [Record.from_json(packed[i]) for i in range(len(packed))]


def found(op: str, of: DeviceClass) -> list[Record]:
    return shipped(op, of.arch, of.backend)


@pytest.fixture
def store(tmp_path) -> lookup.Store:
    return lookup.Store(tmp_path, lookup.shipped_folder())


def test_packed_records_come_back_as_they_were():
    text = "line one, which is long enough\nline two\n\n  line three\n}\n#define A\n#pragma once\n#pragma unroll\n\n"
    whole = [{"a": text, "b": [text, {"c": "x" * 50, "d": [1, 2.5, None, True]}], "e": {}},
             {"a": text, "b": [{"c": "x" * 50, "d": [1, 2.5, None, True]}], "e": {"f": "x" * 50}}]  # fmt: skip
    data = pack(whole)
    packed = Packed(data)
    assert [packed[i] for i in range(len(packed))] == whole
    assert packed.field(1, "e") == whole[1]["e"]
    assert data.count(b"x" * 50) == 1 and data.count(b"line one") == 1
    assert pack(whole) == data
    assert len(Packed(pack([]))) == 0


def test_records_kept_as_changes_come_back_as_they_were():
    """Changed leaves, stretches of lists, whole fields, and fields that come and go."""
    rng = random.Random(0)
    options = [{"layout": layout} for layout in ("nn", "tt")]
    whole = [
        {
            "problem": {"op": "gemm", "shape": [n, 2, 3], "dtype": dtype, "options": how},
            "variant": rng.choice(["one", "two"]),
            "plan": {"list": [rng.randrange(3) for _ in range(rng.randrange(5))], "deep": {"a": [n, {"b": dtype}]},
                     **({"more": "x" * 30} if n == 2 else {})},
            "text": "\n".join(rng.choice(["#define A 1", "#define A 2", "f() {\n}"]) for _ in range(6)),
        }
        for dtype, how, n in product(("float32", "float64"), options, range(1, 6))
    ]  # fmt: skip
    packed = Packed(pack(whole))
    assert [packed[i] for i in range(len(packed))] == whole
    assert packed.field(7, "plan") == whole[7]["plan"]
    wanted = Problem.from_json(whole[7]["problem"])
    assert [whole[i]["problem"]["shape"][0] for i in packed.of(wanted)] == [1, 2, 3, 4, 5]
    assert all(whole[i]["problem"]["options"] == whole[7]["problem"]["options"] for i in packed.of(wanted))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"null"])
def test_a_file_of_something_else_is_refused(data):
    with pytest.raises(ValueError, match="not a file of packed records"):
        Packed(data)


# They are what the generator makes -----------------------------------------------------------------------------------


@EVERY
def test_every_problem_has_a_default_in_every_class(op, of):
    records = found(op.name, of)
    assert list(dict.fromkeys(record.problem for record in records)) == list(defaults.problems(op, of)), AGAIN
    told = {(record.problem.dtype, record.problem.options) for record in records}
    able = ["bfloat16"] if of.unit else [dtype for dtype in op.dtypes[of.backend] if not lacks(of.device(), dtype)]
    assert len(told) == len(able) * prod(len(spec.values) for spec in op.options)
    assert all(record.measurement is None and record.derivation for record in records if len(record.plan.operands) > 3)


@EVERY
def test_shipped_defaults_are_of_the_present_sources(op, of):
    for record in found(op.name, of):
        for source, tokens in record.fingerprint.sources.items():
            assert fingerprint.changed(source, tokens) is None, f"{source} has changed: {AGAIN}"


@EVERY
def test_the_model_says_now_what_it_said_of_the_shipped_defaults(op, of):
    told: dict[tuple, Record] = {}
    for record in found(op.name, of):
        told.setdefault((record.problem.shape, record.problem.dtype, record.variant, str(record.config)), record)
    for record in told.values():
        said = record.evidence["model"]["seconds"]
        assert defaults.seconds(record, of) == pytest.approx(said, rel=1e-3), f"the model has changed: {AGAIN}"


@EVERY
def test_shipped_defaults_are_what_the_generator_makes(op, of):
    """A sample; after a change of rules, templates, sources or model they have to be made again."""
    rng = random.Random(of.arch)
    records = found(op.name, of)
    dtypes = list(dict.fromkeys(record.problem.dtype for record in records))
    shape = rng.choice(list(dict.fromkeys(record.problem.shape for record in records)))
    for dtype in {dtypes[0], dtypes[-1]}:
        some = [r.problem for r in records if r.problem.dtype == dtype and r.problem.shape == shape]
        some = list(dict.fromkeys(some))
        for problem in rng.sample(some, min(3, len(some))):
            again = [msgspec.to_builtins(record.to_json()) for record in defaults.at(problem, of)]
            kept = [msgspec.to_builtins(r.to_json()) for r in records if r.problem == problem]
            assert again == kept, f"{problem.key} for {of.arch} is made anew: {AGAIN}"


# Something runs, whatever the arrays ---------------------------------------------------------------------------------


def test_a_default_asks_for_no_more_than_its_shape_gives():
    for of in (of for of in CLASSES if of.backend == "cpu"):
        for record in found("gemm", of):
            for shape in [(1, 1, 1), (7, 5, 3), (300, 200, 100)]:
                assert lookup.unfit(record.plan, record.problem.at(shape), DEVICE) is None


def awkward(problem: Problem, itemsize: int) -> dict[str, launch.ArrayView]:
    """Arrays that no kernel is made for: every other element of rows with odd pitches, at odd addresses."""
    axes = dict(zip(registry.op(problem.op).letters, problem.shape, strict=True))
    plan = next(r.plan for r in found(problem.op, CUDA[0]) if r.problem.at(()) == problem.at(()))
    shapes = launch.shapes(plan, axes)
    return {
        name: launch.ArrayView(itemsize, shape, tuple(2 * s + 1 for s in launch.contiguous(shape)), itemsize)
        for name, shape in shapes.items()
    }


SHAPES = {
    "gemm": [(1543, 2311, 4095), (1, 1, 1), (4096, 4096, 4096), (7, 3001, 50000)],
    "bmm": [(3, 1543, 311, 95), (1, 1, 1, 1)],
}


@pytest.mark.parametrize("of", CUDA, ids=lambda of: of.arch)
@pytest.mark.parametrize("op", SHAPES)
def test_every_problem_finds_a_default_for_any_arrays(op, of, store):
    where = of.device()
    for record in {r.problem.at(()): r for r in found(op, of)}.values():
        for shape in SHAPES[op][:1]:
            problem = record.problem.at(shape)
            hit = store.find(problem, where)
            assert (hit.kind, lookup.unfit(hit.plan, problem, where)) == ("default", None)
            assert of.arch in hit.reasons[-1]
        if dict(problem.options)["epilogue"] in ("none", "bias,gelu,residual"):
            for shape in SHAPES[op]:
                problem = record.problem.at(shape)
                arrays = awkward(problem, launch.itemsize(problem.dtype))
                hit = store.find(problem, where, arrays=arrays)
                assert lookup.unmet(hit.plan, arrays, where) is None


def test_aligned_arrays_get_the_copy_engine_and_others_what_needs_none(store):
    where = classes.of("cuda", "sm_90a").device()
    large = GEMM.problem((4096, 4096, 4096), "bfloat16", backend="cuda")
    assert store.find(large, where).plan.assumes
    arrays = awkward(large, 2)
    assert store.find(large, where, arrays=arrays).record.variant != store.find(large, where).record.variant


@pytest.mark.parametrize(
    ("arch", "capability", "serves"),
    [
        ("sm_121a", (12, 1), ("sm_121a", "sm_89", "sm_75")),
        ("sm_86", (8, 6), ("sm_86", "sm_89", "sm_75")),
        ("sm_80", (8, 0), ("sm_80", "sm_89", "sm_75")),
        ("sm_75", (7, 5), ("sm_75",)),
    ],
)
def test_an_architecture_without_defaults_of_its_own_gets_those_of_a_fallback(arch, capability, serves, store):
    facts = {**classes.of("cuda", "sm_75").device().facts, "cc_major": capability[0], "cc_minor": capability[1]}
    where = Device("cuda", 0, "a GPU", arch, f"cuda-a-gpu-{arch}", facts)
    assert classes.serving(where) == serves
    for dtype in (dtype for dtype in GEMM.dtypes["cuda"] if not lacks(where, dtype)):
        hit = store.find(GEMM.problem((1000, 1000, 1000), dtype, backend="cuda"), where)
        assert (hit.kind, hit.plan.backend) == ("default", "cuda")


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_class_that_extends_another_has_defaults_of_what_its_unit_is_for(op):
    for of in (of for of in CLASSES if of.unit):
        dtypes = {problem.dtype for problem in defaults.problems(op, of)}
        assert dtypes == ({"bfloat16"} if op.name in UNITS else set())


def test_a_default_for_a_unit_never_serves_a_device_without_it(store):
    """Bfloat16 on a CPU: with tiles those of the tiles, else those of the widest unit that it has."""
    extends = {of.arch: of.extends for of in CLASSES}
    problem = GEMM.problem((1024, 1024, 1024), "bfloat16", backend="cpu")
    for of in (of for of in CLASSES if of.arch.startswith("x86_64")):
        assert classes.serving(of.device())[:2] == (of.arch, of.extends or "any")
        steps = [
            step
            for name in store.find(problem, of.device()).record.variant.split("+")
            for template in registry.templates("cpu")
            if template.name == name
            for step in template.ann
        ]
        assert {step[2] for step in steps if step[0] == "unit"} == ({of.unit} if of.unit else set())
        same = store.find(GEMM.problem((1024, 1024, 1024), "float32", backend="cpu"), of.device())
        base = of.arch
        while extends[base]:
            base = extends[base]
        assert base in same.reasons[-1]


def test_a_processor_never_gets_a_default_of_a_gpu():
    assert not any(name.startswith("sm_") for name in classes.serving(DEVICE))
    assert classes.serving(replace(DEVICE, arch="riscv64")) == ("riscv64", "any")


# They run ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", CUDA, ids=lambda of: of.arch)
def test_plans_of_defaults_compile(of, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    backend, where = backends.get("cuda"), of.device()
    try:
        backend.toolchain(where)
    except CompilerError as error:
        pytest.skip(str(error))
    able = [r for r in found("gemm", of) if r.problem.option("epilogue") == "bias,gelu,residual"]
    by_variant = {r.variant: r for r in random.Random(of.arch).sample(able, len(able))}
    for record in [by_variant[name] for name in sorted(by_variant, key=lambda name: name[::-1])][:2]:
        for kernel in record.plan.kernels:
            assert backend.compile(kernel, where, timeout_s=200).path.is_file()


@pytest.mark.parametrize("op", ["attention", "grouped_attention"])
@pytest.mark.parametrize("of", [of for of in CUDA if of.arch != "sm_75"], ids=lambda of: of.arch)
def test_every_config_of_attention_that_is_a_default_compiles(op, of, tmp_path, monkeypatch):
    """Registers decide, which the space foresees by a rule only; options and dtypes are drawn."""
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    backend, where = backends.get("cuda"), of.device()
    try:
        backend.toolchain(where)
    except CompilerError as error:
        pytest.skip(str(error))
    every = found(op, of)
    drawn = {(r.variant, tuple(sorted(r.config.items()))): r for r in random.Random(of.arch).sample(every, len(every))}
    kernels = [k for r in drawn.values() for k in r.plan.kernels if k.source.startswith("attention/")]
    assert kernels
    for kernel in kernels:
        assert backend.compile(kernel, where, timeout_s=200).path.is_file()


@pytest.mark.parametrize("arch", classes.serving(DEVICE))
@pytest.mark.parametrize("epilogue", ["none", "bias,gelu,residual"])
def test_defaults_pass_the_gates(arch, epilogue, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    unit = any(of.unit for of in CLASSES if of.arch == arch)  # whose class has defaults of bfloat16 only
    dtype = "bfloat16" if unit else "float32"
    problem = GEMM.problem(GEMM.typical["cpu"][0], dtype, backend="cpu", epilogue=epilogue, layout="tn")
    record = next(r for r in shipped("gemm", arch, "cpu") if r.problem == problem)
    assert upkeep.examine(record, DEVICE)
