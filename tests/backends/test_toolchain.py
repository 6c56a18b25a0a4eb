import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernsearch.backends import Toolchain
from kernsearch.backends.cpu import toolchain
from kernsearch.errors import CompilerError

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on PATH")
needs_zig = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="no ziglang wheel")
NARROWER = "-march=x86_64_v2"  # the last one counts; zig does not heed -mno-avx2 beside -march=native


def zig() -> str:
    spec = importlib.util.find_spec("ziglang")
    assert spec is not None and spec.submodule_search_locations
    return str(Path(spec.submodule_search_locations[0], "zig"))


def script(path: Path, line: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


@needs_gcc
def test_gcc_is_taken_first(cpu, monkeypatch):
    found = toolchain.find(cpu)
    assert found.name == "gcc" and int(found.version.split(".")[0]) >= 12
    assert found.id.startswith(f"gcc-{found.version}-{cpu.arch}-")


@needs_gcc
def test_other_flags_for_all_kernels_count_as_another_compiler(cpu, monkeypatch):
    before, flags = toolchain.find(cpu), toolchain.base_flags(cpu)
    monkeypatch.setattr(toolchain, "base_flags", lambda device: (*flags, "-fno-unroll-loops"))
    monkeypatch.setattr(toolchain, "_known", {})
    after = toolchain.find(cpu)
    assert after.version == before.version and after.id != before.id


@needs_zig
def test_with_nothing_on_path_the_wheel_is_taken(cpu, monkeypatch):
    monkeypatch.setenv("PATH", "")
    found = toolchain.find(cpu)
    assert found.name == "zig" and "(clang " in found.version
    assert toolchain.find(cpu) is found


@pytest.mark.skipif(shutil.which("gcc", path=os.defpath) is None, reason="no gcc in the usual folders")
def test_without_a_path_the_usual_folders_are_searched(cpu, monkeypatch):
    monkeypatch.delenv("PATH")
    monkeypatch.setitem(sys.modules, "ziglang", None)
    assert toolchain.find(cpu).name == "gcc"


def test_with_no_compiler_at_all_the_message_says_what_to_install(cpu, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "ziglang", None)  # as if it were not installed
    with pytest.raises(CompilerError) as refusal:
        toolchain.find(cpu)
    assert "gcc" in str(refusal.value) and 'pip install "kernsearch[cc]"' in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "named",
    ["nonesuch", "/nonesuch/gcc -O2", "/dev/null", "true", "ls", "'", " ", "sh -c 'exit 3'", "sh -c 'kill -9 $$'"],
)
def test_a_named_compiler_that_is_none_is_an_error_that_names_it(cpu, monkeypatch, named):
    monkeypatch.setenv("KERNSEARCH_CC", named)
    with pytest.raises(CompilerError) as refusal:
        toolchain.find(cpu)
    assert f"KERNSEARCH_CC={named!r}" in str(refusal.value) and "\n" not in str(refusal.value)


@needs_gcc
def test_a_named_compiler_may_hold_arguments_and_they_tell_toolchains_apart(cpu, monkeypatch):
    plain = toolchain.find(cpu)
    monkeypatch.setenv("KERNSEARCH_CC", "gcc -Winvalid-pch -Wundef")
    named = toolchain.find(cpu)
    assert named.command[1:] == ("-Winvalid-pch", "-Wundef")
    assert named.id != plain.id


@needs_gcc
def test_a_named_compiler_may_have_spaces_in_its_path(cpu, monkeypatch, tmp_path):
    program = script(tmp_path / "my tools" / "cc", 'exec gcc "$@"')
    monkeypatch.setenv("KERNSEARCH_CC", str(program))
    assert toolchain.find(cpu).command == (str(program),)


@needs_zig
def test_a_clang_that_drops_the_host_vectors_is_passed_over(cpu, monkeypatch, tmp_path, home):
    if cpu.isa not in ("avx512", "avx2"):
        pytest.skip("the host has only the narrowest vectors")
    variables = f"ZIG_GLOBAL_CACHE_DIR='{home}/zig' ZIG_LOCAL_CACHE_DIR='{home}/local'"
    script(tmp_path / "bin" / "clang", f'{variables} exec "{zig()}" cc "$@" {NARROWER}')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert toolchain.find(cpu).name == "zig"
    monkeypatch.setenv("KERNSEARCH_CC", "clang")
    with pytest.raises(CompilerError, match=f"does not emit {cpu.isa}"):
        toolchain.find(cpu)


@needs_gcc
def test_a_compiler_that_splits_the_host_vectors_is_refused(cpu, monkeypatch, tmp_path):
    if cpu.isa != "avx512":
        pytest.skip("only AVX-512 vectors are split with their instructions at hand")
    line = 'for word; do shift; [ "$word" = trial.c ] && set -- "$@" -O0 -fno-tree-vectorize -DKS_VECTOR_BYTES=32'
    program = script(tmp_path / "bin" / "cc", f'{line}; set -- "$@" "$word"; done; exec gcc "$@" 2>/dev/null')
    monkeypatch.setenv("KERNSEARCH_CC", str(program))
    with pytest.raises(CompilerError, match="32-byte vectors where this CPU has 64-byte ones"):
        toolchain.find(cpu)


@needs_gcc
def test_a_gcc_without_system_headers_is_passed_over_with_the_reason(cpu, monkeypatch, tmp_path, home):
    script(tmp_path / "bin" / "gcc", f'exec {shutil.which("gcc")} -nostdinc "$@"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    with pytest.raises(CompilerError, match=r"gcc: trial\.c:1:\d+: (fatal )?error: .*math\.h"):
        toolchain.find(cpu)


@needs_gcc
def test_what_was_found_is_remembered_until_the_compiler_changes(cpu, monkeypatch, tmp_path, home):
    log = tmp_path / "log"
    program = script(tmp_path / "bin" / "counted", f'echo run >> "{log}"; exec gcc "$@"')
    monkeypatch.setenv("KERNSEARCH_CC", str(program))
    code = "from kernsearch.backends.cpu import device, toolchain; print(toolchain.find(device.this_device()).id)"

    def ask() -> str:
        return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout

    first, runs = ask(), log.read_text()
    assert runs and ask() == first and log.read_text() == runs
    os.utime(program, (1, 1))
    assert ask() == first and log.read_text() == runs * 2


@needs_gcc
def test_a_damaged_memory_is_only_forgotten(cpu, home, monkeypatch):
    monkeypatch.setattr(toolchain, "_known", {})
    found = toolchain.find(cpu)
    (memory,) = (home / "toolchains").iterdir()
    memory.write_text('{"name": "gc')
    monkeypatch.setattr(toolchain, "_known", {})
    assert toolchain.find(cpu) == found and isinstance(found, Toolchain)
