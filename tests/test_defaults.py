"""Shipped defaults: what the generator makes, and fit to run."""

from __future__ import annotations

import random

import msgspec
import pytest

from kernsearch import backends, registry
from kernsearch.records import Record, defaults, lookup, upkeep
from kernsearch.records.packing import Packed, pack

GEMM = registry.op("gemm")
DEVICE = backends.resolve("cpu")[1]


def shipped(arch: str) -> list[Record]:
    packed = Packed((lookup.shipped_folder() / "defaults" / arch / "gemm.json").read_bytes())
    return [Record.from_json(packed[i]) for i in range(len(packed))]


def test_packed_records_come_back_as_they_were():
    text = "line one, which is long enough\nline two\n\nline two\n"
    whole = [{"a": text, "b": [text, {"c": "x" * 50, "d": [1, 2.5, None, True]}], "e": {}},
             {"a": text, "b": [{"c": "x" * 50, "d": [1, 2.5, None, True]}], "e": {"f": "x" * 50}}]  # fmt: skip
    data = pack(whole)
    packed = Packed(data)
    assert [packed[i] for i in range(len(packed))] == whole
    assert packed.field(1, "e") == whole[1]["e"]
    assert data.count(b"x" * 50) == 1 and data.count(b"line one") == 1
    assert pack(whole) == data
    assert len(Packed(pack([]))) == 0


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"null"])
def test_a_file_of_something_else_is_refused(data):
    with pytest.raises(ValueError, match="not a file of packed records"):
        Packed(data)


@pytest.mark.parametrize("arch", sorted(defaults.CLASSES))
def test_every_problem_has_a_default_in_every_class(arch):
    found = shipped(arch)
    assert [record.problem for record in found] == list(defaults.problems(GEMM, arch))
    for dtype in GEMM.dtypes["cpu"]:
        for epilogue in GEMM.options[1].values:
            assert any(r.problem.dtype == dtype and r.problem.option("epilogue") == epilogue for r in found)
    assert all(record.measurement is None and record.derivation for record in found)


@pytest.mark.parametrize("arch", sorted(defaults.CLASSES))
def test_shipped_defaults_are_what_the_generator_makes(arch):
    """A sample; after a change of rules, templates, sources or model: python -m kernsearch.records.defaults"""
    found = shipped(arch)
    for record in random.Random(arch).sample(found, 6):
        again = defaults.record(record.problem, defaults.device(arch))
        assert msgspec.to_builtins(again.to_json()) == msgspec.to_builtins(record.to_json())


def test_a_default_asks_for_no_more_than_its_shape_gives():
    for arch in defaults.CLASSES:
        for record in shipped(arch):
            for shape in [(1, 1, 1), (7, 5, 3), (300, 200, 100)]:
                assert lookup.unfit(record.plan, record.problem.at(shape), DEVICE) is None


@pytest.mark.parametrize("arch", [DEVICE.arch, "any"])
@pytest.mark.parametrize("epilogue", ["none", "bias,gelu,residual"])
def test_defaults_pass_the_gates(arch, epilogue, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    problem = GEMM.problem(GEMM.typical[0], "float32", backend="cpu", epilogue=epilogue, layout="tn")
    record = next(r for r in shipped(arch) if r.problem == problem)
    assert upkeep.examine(record, DEVICE)
