"""The command line as a user meets it: real processes, a real tuning run, every bad request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SMALL = ("gemm", "--shape", "48x40x56")


Done = subprocess.CompletedProcess[str]


def kernsearch(*arguments: str, home: Path, check: int | None = 0, **variables: str) -> Done:
    """Run the command in a folder of its own, with everything kept under `home`."""
    done = subprocess.run(
        [sys.executable, "-m", "kernsearch.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=home,
        env={**os.environ, "KERNSEARCH_CACHE": str(home / "cache"), **variables},
        timeout=240,
    )
    if check is not None:
        assert done.returncode == check, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def told(home: Path) -> dict[str, Any]:
    """What `tune --json` prints for a small problem."""
    done = kernsearch("tune", *SMALL, "--trials", "8", "--timeout", "20", "--json", home=home)
    return json.loads(done.stdout)


def test_help_imports_nothing_heavy(home: Path) -> None:
    code = (
        "import sys; from kernsearch.cli import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('numpy', 'optuna', 'networkx', 'joblib', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=home, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_json_of_tune_has_all_that_scripts_rely_on(told: dict[str, Any]) -> None:
    names = {"problem", "device", "variant", "config", "derivation", "median_s", "ci_s", "default_median_s", "tie",
             "counts", "record", "resumed", "elapsed_s"}  # fmt: skip
    assert names <= set(told)
    counts = told["counts"]
    assert counts["asked"] == counts["measured"] + counts["duplicates"] + sum(counts["rejected"].values())
    assert set(counts["rejected"]) == {"space", "compile", "execution", "correctness"}
    assert 0 < told["ci_s"][0] <= told["median_s"] <= told["ci_s"][1]
    assert told["derivation"] and all({"rule", "site"} <= set(step) for step in told["derivation"])
    assert told["resumed"] == 0
    assert Path(told["record"]).is_file()


def _refused(run: dict[str, Any]) -> int:
    return sum(count for gate, count in run["counts"]["rejected"].items() if gate != "space")


def test_a_second_run_goes_on_with_the_study(home: Path, told: dict[str, Any]) -> None:
    again = json.loads(kernsearch("tune", *SMALL, "--trials", "8", "--timeout", "20", "--json", home=home).stdout)
    first, second = (run["counts"]["measured"] + _refused(run) for run in (told, again))
    assert again["resumed"] >= first
    assert first + second <= 8


def test_the_record_is_an_exact_hit_afterwards(home: Path, told: dict[str, Any]) -> None:
    why = json.loads(kernsearch("cache", "why", *SMALL, "--json", home=home).stdout)
    assert why["hit"] == "exact" and why["reasons"]


def test_an_op_of_a_space_file_can_be_asked_about(home: Path) -> None:
    space = str(Path(__file__).parent.parent / "examples" / "row_energy.py")
    done = kernsearch("cache", "why", "row_energy", "--shape", "64x500", "--space", space, home=home, check=2)
    assert "nothing can run row_energy 64x500" in done.stderr


@pytest.mark.parametrize("words", [(), ("cache",)])
def test_commands_alone_show_their_help(home: Path, words: tuple[str, ...]) -> None:
    done = kernsearch(*words, home=home, check=None)
    assert (done.stdout + done.stderr).startswith("Usage: kernsearch") and "\nCommands:\n" in done.stdout + done.stderr


def test_other_options_are_other_problems(home: Path, told: dict[str, Any]) -> None:
    for option in (("--layout", "tn"), ("--epilogue", "bias"), ("--dtype", "float64")):
        why = json.loads(kernsearch("cache", "why", *SMALL, *option, "--json", home=home).stdout)
        assert why["hit"] == "default", option


def test_records_can_be_listed_and_shown(home: Path, told: dict[str, Any]) -> None:
    rows = json.loads(kernsearch("cache", "list", "--json", home=home).stdout)
    mine = [row for row in rows if row["place"] == "user"]
    assert len(mine) == 1 and mine[0]["variant"] == told["variant"]
    shown = kernsearch("show", mine[0]["name"], "--source", "--log", home=home).stdout
    assert told["variant"].partition("+")[0] in shown and "ks_generated.h" in shown
    assert json.loads(kernsearch("show", told["record"], "--json", home=home).stdout)["variant"] == told["variant"]
    assert "48x40x56" in kernsearch("cache", "list", home=home).stdout


def test_explain_tells_the_derivation_and_the_winner(home: Path, told: dict[str, Any]) -> None:
    explained = json.loads(kernsearch("explain", *SMALL, "--json", home=home).stdout)
    assert explained["winner"]["variant"] == told["variant"]
    assert explained["steps"][0]["rule"] == "textbook" and explained["steps"][-1]["rule"] == "schedule"
    assert explained["predicted"][0]["seconds"] > 0
    last = explained["steps"][-1]
    assert (last["measured_s"], last["measured_in"]) == (explained["winner"]["median_s"], "play-off")
    assert explained["bounds"]["says"] and explained["refused"].keys() == {"by_gate", "reasons"}
    assert "derivation of" in kernsearch("explain", *SMALL, home=home).stdout


def test_graph_speaks_three_languages(home: Path) -> None:
    graph = json.loads(kernsearch("graph", *SMALL, "--epilogue", "bias,gelu", home=home).stdout)
    assert sum(node["root"] for node in graph["nodes"]) == 1
    assert all(edge["rule"] for edge in graph["edges"])
    assert "<graphml" in kernsearch("graph", *SMALL, "--format", "graphml", home=home).stdout
    assert kernsearch("graph", *SMALL, "--format", "dot", home=home).stdout.startswith("digraph")


def test_doctor_finds_this_machine_ready(home: Path) -> None:
    findings = json.loads(kernsearch("doctor", "--json", home=home).stdout)
    assert findings["ok"] and findings["device"]["threads"] >= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tune", "gemm", "--shape", "16xx16"), "16xx16"),
        (("tune", "gemm", "--shape", "0x4x4"), "0x4x4"),
        (("tune", "gemm", "--shape", "-4x4x4"), "-4x4x4"),
        (("tune", "gemm", "--shape", "4x4"), "3 sizes"),
        (("tune", "gemm", "--shape", "99999999999999x4x4"), "digits"),
        (("tune", "gemm", "--shape", "900000x900000x900000"), "GiB"),
        *(
            ((*command, "gemm", "--shape", shape), words)
            for command in (("explain",), ("graph",), ("cache", "why"), ("ladder",))
            for shape, words in (
                ("0x4x4", "positive sizes"),
                ("-4x4x4", "positive sizes"),
                (f"{2**70}x4x4", "digits"),
                ("900000x900000x900000", "GiB"),
            )
        ),
        (("tune", "gemm"), "--shape"),
        (("tune", "gem", "--shape", "4x4x4"), "gem"),
        (("tune", *SMALL, "--dtype", "int7"), "int7"),
        (("tune", *SMALL, "--device", "tpu"), "tpu"),
        (("tune", *SMALL, "--device", "cuda:x"), "cuda:x"),
        (("tune", *SMALL, "--layout", "xx"), "xx"),
        (("tune", *SMALL, "--epilogue", "gelu,relu"), "relu"),
        (("tune", *SMALL, "--searcher", "magic"), "magic"),
        (("tune", *SMALL, "--trials", "0"), "trials"),
        (("tune", *SMALL, "--trials", "many"), "many"),
        (("tune", *SMALL, "--timeout", "-1"), "timeout"),
        (("tune", *SMALL, "--timeout", "nan"), "timeout"),
        (("tune", *SMALL, "--jobs", "0"), "jobs"),
        (("tune", *SMALL, "--fix", "MR"), "MR"),
        (("tune", *SMALL, "--fix", "ZZ=3"), "ZZ"),
        (("tune", *SMALL, "--fix", "MR=6", "--fix", "MR=8"), "want each letter once"),
        (("tune", *SMALL, "--option", "layout=nt", "--option", "layout=tn"), "given twice"),
        (("explain", *SMALL, "--layout", "nt", "--option", "layout=tn"), "one or the other"),
        (("tune", *SMALL, "--fix", "MR=12345"), "12345"),
        (("tune", *SMALL, "--variant", "fastest"), "fastest"),
        (("tune", *SMALL, "--storage", "postgresql://nobody@127.0.0.1:9/none"), "storage"),
        (("tune", *SMALL, "--storage", "sqlite:////proc/none/x.db"), "/proc/none"),
        (("tune", *SMALL, "--space", "missing.py"), "missing.py"),
        (("explain", *SMALL, "--device", "cuda:99"), "; --from RECORD explains a record of a device"),
        (("ladder", *SMALL, "--device", "cuda:99"), "; --from cuda-nvidia-h200-sm90a shows what was recorded there"),
        (("case", "multicast", "--device", "cuda:99"), "; --from cuda-nvidia-h200-sm90a shows what was recorded"),
        (("bench", *SMALL, "--against", "fortran"), "fortran"),
        (("bench", *SMALL, "--against", "cupy"), "cupy"),
        (("show", "no-such-record"), "no-such-record"),
        (("graph", *SMALL, "--format", "png"), "png"),
        (("cache", "why", *SMALL, "--policy", "hopeful"), "hopeful"),
        (("tun", *SMALL), "tun"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_a_bad_request_is_one_line_and_exit_two(arguments: tuple[str, ...], words: str, home: Path) -> None:
    done = kernsearch(*arguments, home=home, check=2)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("kernsearch: ") and words in lines[0], done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "command",
    ["case register-spill --from", "ladder gemm --from", "explain --from", "show", "cache import", "bench --compare",
     "replay"],
)  # fmt: skip
def test_json_nested_deeper_than_python_follows_is_one_line(command: str, home: Path, tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000 + "]" * 100_000)
    done = kernsearch(*command.split(), str(deep), home=home, check=2)
    assert done.stderr.count("\n") == 1 and "deep.json" in done.stderr, done.stderr


def test_a_record_that_is_skipped_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "bad.json").write_text("{")
    done = kernsearch("cache", "merge", str(tmp_path / "records"), home=tmp_path)
    (line,) = done.stderr.splitlines()
    assert line.startswith("kernsearch: record ") and "bad.json" in line


def test_an_unusable_cache_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = kernsearch("tune", *SMALL, home=tmp_path, check=2, KERNSEARCH_CACHE=str(tmp_path / "file" / "below"))
    assert "KERNSEARCH_CACHE" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_no_compiler_names_the_cures(tmp_path: Path) -> None:
    done = kernsearch("tune", *SMALL, home=tmp_path, check=2, KERNSEARCH_CC="/no/such/compiler", PATH="")
    assert "/no/such/compiler" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_nothing_but_json_reaches_standard_output(home: Path, told: dict[str, Any]) -> None:
    done = kernsearch("tune", *SMALL, "--trials", "9", "--timeout", "20", "--json", home=home)
    json.loads(done.stdout)
    assert "gemm 48x40x56" in done.stderr


def test_closed_standard_streams_change_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "kernsearch.cli", "tune", *SMALL, "--trials", "1", "--timeout", "20"]
    closed = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *words]
    done = subprocess.run(closed, cwd=tmp_path, env={**os.environ, "KERNSEARCH_CACHE": str(tmp_path)}, timeout=240)
    assert done.returncode == 0
    assert len(list(tmp_path.glob("records/*/*.json"))) == 1


def test_a_full_disk_behind_the_output_is_one_line(home: Path) -> None:
    words = [sys.executable, "-m", "kernsearch.cli", "cache", "list"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, cwd=home)
    assert done.returncode == 2
    assert done.stderr == "kernsearch: No space left on device\n"


def test_a_reader_may_go_away(home: Path) -> None:
    words = [sys.executable, "-m", "kernsearch.cli", "graph", *SMALL]
    run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=home)
    assert run.stdout is not None and run.stderr is not None
    run.stdout.close()
    assert run.stderr.read() == b"" and run.wait() == 0
