"""The house rules that a reviewer should not have to remember."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAPPED = {"spaces": "kernsearch.spaces", "kernels": "kernsearch.kernels", "cache": "kernsearch.cache"}

# Each module may import those of its own floor and of the floors below it. A package counts for its modules.
FLOORS = (
    {"cli", "report", "cases", "spaces", "torch_ops"},
    {"tune", "peers", "workload", "replay"},
    {"runtime"},
    {"search", "gates", "measure", "model", "records", "worker"},
    {"backends", "candidate", "feasible", "registry"},
    {"derive", "template", "rules", "claims"},
    {"space"},
    {"meaning", "program", "binding", "plan", "launch", "workspace", "sizes", "problem", "device", "sources",
     "namespace"},
    {"settings", "errors", "files", "json_text", "units"},
)  # fmt: skip


def modules() -> Iterator[tuple[str, Path, ast.Module]]:
    for folder in ("kernsearch", *MAPPED):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(("kernsearch", *parts) if folder in MAPPED else parts)
            yield name.removesuffix(".__init__"), path, ast.parse(path.read_text())


def imports(name: str, path: Path, tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Absolute names of all imports, those inside functions too, those for type checkers not."""
    checked = {id(n) for node in ast.walk(tree) if _for_types(node) for n in ast.walk(node)}
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if id(node) in checked:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{base}.{alias.name}", node


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def part(name: str) -> str | None:
    """'kernsearch.search.study' -> 'search'; None for what is not ours and for the package itself."""
    words = name.split(".")
    return words[1] if words[0] == "kernsearch" and len(words) > 1 else None


def importers_of(library: str) -> set[str]:
    return {name for name, path, tree in modules() for found, _ in imports(name, path, tree)
            if found.split(".")[0] == library}  # fmt: skip


def test_imports_run_one_way() -> None:
    floor = {module: level for level, names in enumerate(FLOORS) for module in names}
    wrong = []
    for name, path, tree in modules():
        here = part(name)
        for found, node in imports(name, path, tree):
            there = part(found)
            if here is None or there is None or there not in floor or here in ("kernels", "cache"):
                continue
            lazy = any(isinstance(outer, ast.FunctionDef) and node in ast.walk(outer) for outer in ast.walk(tree))
            if here == "spaces":  # what they offer to people may use the runtime; only theirs, only when called
                continue
            if floor[here] > floor[there] and not (lazy and there == "spaces"):
                wrong.append(f"{name} imports {found}")
    assert wrong == []


def test_every_module_has_a_floor() -> None:
    floors = set().union(*FLOORS) | {"kernels", "cache"}
    assert {p for name, _, _ in modules() if (p := part(name)) is not None} - floors == set()


@pytest.mark.parametrize(
    ("library", "door"),
    [("optuna", "kernsearch.search"), ("sqlalchemy", "kernsearch.search"), ("networkx", "kernsearch.program.graph"),
     ("joblib", "kernsearch.backends.cpu.compiler")],
)  # fmt: skip
def test_heavy_libraries_have_one_door(library: str, door: str) -> None:
    assert {name for name in importers_of(library) if not f"{name}.".startswith(f"{door}.")} == set()


def test_only_settings_reads_the_environment() -> None:
    readers = {
        name
        for name, _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    # Children get an environment: a compiler's guard passes one on, a peer's has thread counts set.
    assert readers <= {"kernsearch.settings", "kernsearch.peers.host", "kernsearch.backends.cpu.compile_child"}


def test_only_the_command_line_and_reports_print() -> None:
    talkers = {
        name
        for name, _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert {t for t in talkers if not t.startswith(("kernsearch.cli", "kernsearch.report"))} == set()


def test_the_engine_names_no_op() -> None:
    named = []
    for name, _, tree in modules():
        if part(name) in ("spaces", "kernels", "cache", None) or name.startswith("kernsearch.cli"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in ("gemm", "softmax", "attention"):
                named.append(name)
    assert named == []


def test_the_wheel_holds_every_package_of_the_tree() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = set()
    for folder in ("kernsearch", *MAPPED):
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            found.add(".".join(("kernsearch", *parts) if folder in MAPPED else parts))
    assert set(told["packages"]) == found
    assert told["package-dir"] == {package: folder for folder, package in MAPPED.items()}


def test_a_commit_is_checked_as_ci_checks_it_before_the_tests() -> None:
    hooks = re.findall(r"^ +entry: (.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.M)
    run = (ROOT / ".ci" / "run").read_text().splitlines()
    tests = next(n for n, line in enumerate(run) if line.startswith("pytest "))
    checks = [line for line in run[run.index("ruff check .") : tests] if not line.startswith("#")]
    assert hooks == checks


def test_a_lookup_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, kernsearch as ks\n"
        "plan = ks.load('gemm', shape=(64, 48, 32))\n"
        "print(plan.hit, [m for m in ('optuna', 'networkx', 'joblib', 'rich', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True,
        env={"KERNSEARCH_CACHE": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout.split(maxsplit=1) == ["default", "[]\n"] or done.stdout.strip().endswith("[]")
