"""Bench results against earlier ones."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest

from kernsearch import backends
from kernsearch.errors import CacheError
from kernsearch.peers import then

KEY = "gemm 17x23x31 float32 epilogue=none layout=nn"


def result(seconds: float = 1e-3, ratio: float = 1.0, library: str = "numpy 2", width: float = 0.005) -> dict:
    def around(value: float) -> list[float]:
        return [value * (1 - width), value * (1 + width)]

    peer = {"median_s": seconds * ratio, "ratio": ratio, "ratio_ci": around(ratio), "library": library}
    ours = {"median_s": seconds, "ci_s": around(seconds), "called": "kernsearch"}
    return {
        "results": [{"problem": KEY, "ours": ours, "peers": {"numpy": peer}, "busy": False}],
        "device": "cpu-x-2t", "cache": "cold", "threads": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "ratio", "want"),
    [
        (1e-3, 1.0, "same"),
        (1.2e-3, 1 / 1.2, "slower"),
        (0.8e-3, 1.25, "faster"),
        (1.2e-3, 1.0, "same"),  # everything got slower: the machine did
        (1e-3, 1 / 1.2, "same"),  # the library got faster on this day, we did not change
        (1.01e-3, 1 / 1.01, "same"),
    ],
)
def test_a_problem_changed_when_its_time_did_and_its_time_by_the_librarys(seconds, ratio, want):
    (row,) = then.compared(result(seconds, ratio), result())["problems"]
    assert row["verdict"] == want and row["ratio"] == pytest.approx(seconds / 1e-3)
    assert row["beside"]["numpy"] == pytest.approx(1 / ratio)


def test_a_library_of_another_version_says_nothing():
    (row,) = then.compared(result(1.2e-3, 1.0, "numpy 3"), result())["problems"]
    assert row["verdict"] == "slower" and row["beside"] == {}


def test_wide_intervals_hide_a_change_and_unknown_problems_are_new():
    (row,) = then.compared(result(1.2e-3, 1 / 1.2, width=0.15), result())["problems"]
    assert row["verdict"] == "same"
    other = copy.deepcopy(result())
    other["results"][0]["problem"] = KEY.replace("17", "18")
    told = then.compared(result(), other)
    assert told["problems"][0]["verdict"] == "new" and told["slower"] == 0


def test_what_was_measured_elsewhere_or_otherwise_is_refused():
    for field, value in (("device", "cpu-y"), ("cache", "warm"), ("threads", 4)):
        with pytest.raises(CacheError, match=field):
            then.compared(result(), {**result(), field: value})
    with pytest.raises(CacheError, match="cpu-x-2t"):
        then.check(result(), "cpu-y")
    with pytest.raises(CacheError, match="cold caches"):
        then.check(result(), "cpu-x-2t", warm=True)
    with pytest.raises(CacheError, match="bench --json"):
        then.check({"rows": []}, "cpu-x-2t")


def test_problems_and_libraries_come_from_the_file():
    assert [problem.key for problem in then.problems(result())] == [KEY]
    assert then.libraries(result()) == ("numpy",)
    with pytest.raises(CacheError, match="no problem"):
        then.problems({"results": [{"problem": "gemm"}]})


def test_the_command_times_the_old_problems_again_and_exits_with_1_when_one_got_slower(tmp_path):
    old = {**result(1e-12, 1e9), "device": backends.resolve("cpu")[1].key, "threads": None}
    old["results"][0]["peers"]["numpy"]["library"] = "another"
    path = tmp_path / "old.json"
    command = [sys.executable, "-m", "kernsearch.cli", "bench", "--compare", str(path), "--rounds", "3", "--json"]
    old["threads"] = backends.resolve("cpu")[1].threads
    path.write_text(json.dumps(old))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["compared"]["problems"][0]["verdict"] == "slower"
    path.write_text(json.dumps({**told, "compared": None}))
    again = subprocess.run(command[:-1], capture_output=True, text=True)
    assert again.returncode in (0, 1) and "now / then" in again.stdout, again.stderr
