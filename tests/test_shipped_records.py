"""Shipped records: each can serve the problem that its name tells, on the device of its folder."""

from __future__ import annotations

import pytest

from kernsearch import records
from kernsearch.records import fingerprint
from kernsearch.records.lookup import shipped_folder

SHIPPED = sorted(path for path in shipped_folder().glob("*/*.json") if path.parent.parent.name != "recordings")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_shipped_record_is_of_the_present_sources(path):
    record = records.read(path)
    assert path.name.startswith(records.stem(record.problem))
    assert {kernel.source for kernel in record.plan.kernels} <= set(record.fingerprint.sources)
    changed = [source for source, tokens in record.fingerprint.sources.items() if fingerprint.changed(source, tokens)]
    assert not changed, (
        "tune it again, or see by benchmarks/same_code.py that it still compiles to the same machine code"
    )
