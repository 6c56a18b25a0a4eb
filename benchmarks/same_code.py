"""Records whose sources have changed, and whether they still compile to the same instructions.

    python benchmarks/same_code.py REVISION          the revision of git that they were tuned with
    python benchmarks/same_code.py REVISION --stamp  those of the same instructions name the present sources from now on

Compiles the kernels of each such record for its architecture, with the sources of that revision and with those that are
here, and compares what the disassembler says. Wants `.[test]`, whose wheels bring NVRTC and the disassembler.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernsearch import backends, records
from kernsearch.backends.cuda.machine_code import disassembled
from kernsearch.plan import KernelPlan
from kernsearch.records import fingerprint
from kernsearch.records.lookup import shipped_folder

HERE = Path(__file__).resolve().parent.parent
_DATA = re.compile(r"^\s*(/\*[0-9a-f]+\*/)?\s*\.(byte|short|word|dword|string)\b")  # tables of lines among them


def changed() -> Iterator[Path]:
    """Shipped records of GPUs that name other sources than those that are here."""
    for path in sorted(shipped_folder().glob("cuda-*/*.json")):
        sources = records.read(path).fingerprint.sources
        if any(fingerprint.changed(source, tokens) for source, tokens in sources.items()):
            yield path


def instructions(path: Path) -> list[str]:
    """A hash for each kernel of a record."""
    return [_hash(kernel, path.parent.name.rsplit("-", 1)[-1]) for kernel in records.read(path).plan.kernels]


def _hash(kernel: KernelPlan, arch: str) -> str:
    backend = backends.get("cuda")
    device = backend.compile_only(re.sub(r"^sm", "sm_", arch))
    compiled = backend.compile(kernel, device, timeout_s=120.0)
    lines = [line for line in disassembled(compiled.path).splitlines() if not _DATA.match(line)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _elsewhere(tree: Path, paths: Sequence[Path]) -> list[list[str]]:
    """`instructions` by the sources of another tree, in a process that imports them."""
    asked = json.dumps([str(path) for path in paths])
    code = (
        f"import sys; sys.path.insert(0, {str(HERE / 'benchmarks')!r}); import same_code; same_code.tell(sys.argv[1])"
    )
    run = {"cwd": tree, "env": {**os.environ, "PYTHONPATH": str(tree)}}  # the folder it runs in is looked at first
    done = subprocess.run([sys.executable, "-c", code, asked], **run, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    found: list[list[str]] = json.loads(done.stdout)
    return found


def tell(asked: str) -> None:
    print(json.dumps([instructions(Path(path)) for path in json.loads(asked)]))


def stamp(path: Path) -> None:
    """Let the record name the present sources."""
    record, text = records.read(path), path.read_text()
    for source, tokens in record.fingerprint.sources.items():
        text = text.replace(tokens, fingerprint.source_tokens(source))
    path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("--stamp", action="store_true", help="write the present sources into records of the same code")
    given = parser.parse_args()
    paths = list(changed())
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(tree), given.revision], check=True)
        try:
            before = _elsewhere(tree, paths)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    for path, old in zip(paths, before, strict=True):
        same = instructions(path) == old
        if same and given.stamp:
            stamp(path)
        print("same" if same else "other", path.name)
    print(f"{len(paths)} records whose sources have changed")


if __name__ == "__main__":
    main()
