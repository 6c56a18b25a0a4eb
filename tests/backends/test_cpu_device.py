import os
import platform
from pathlib import Path

import pytest

from kernsearch.backends.cpu import device
from kernsearch.errors import DeviceError


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_the_facts_of_this_machine_are_plausible(cpu):
    assert cpu.threads == device.usable_cores() <= len(os.sched_getaffinity(0))
    assert cpu.arch.startswith(f"{platform.machine()}-{cpu.isa}")
    assert (cpu.vector_bytes, cpu.vector_registers) == device.ISA[cpu.isa]
    assert 4096 <= cpu.l1d_bytes <= cpu.l2_bytes
    assert cpu.line_bytes in (32, 64, 128, 256)
    assert cpu.memory_bytes > 1 << 28


def test_the_key_is_a_folder_name_that_ends_in_the_thread_count(cpu, monkeypatch):
    kind = cpu.arch.removeprefix(f"{platform.machine()}-")
    assert cpu.key.startswith("cpu-") and cpu.key.endswith(f"-{kind}-{cpu.threads}t")
    assert set(cpu.key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    monkeypatch.setenv("KERNSEARCH_THREADS", "7")
    assert device.this_device().threads == 7 and device.this_device().key.endswith("-7t")


def test_a_thread_count_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("KERNSEARCH_THREADS", "many")
    with pytest.raises(DeviceError, match="KERNSEARCH_THREADS"):
        device.this_device()


def test_affinity_limits_the_threads():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert device.usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    "machine, flags, isa",
    [
        ("x86_64", "sse2 avx2 fma avx512f avx512dq avx512bw avx512vl", "avx512"),
        ("x86_64", "sse2 avx2 fma avx512f avx512cd", "avx2"),
        ("x86_64", "sse2 avx2", "sse2"),
        ("aarch64", "fp asimd sve", "neon"),
        ("riscv64", "", "scalar"),
    ],
)
def test_the_instruction_class_needs_all_its_parts(machine, flags, isa):
    assert device.isa_of(machine, set(flags.split())) == isa


@pytest.mark.parametrize(
    "isa, flags, tiles, units",
    [
        ("avx512", "avx512_bf16 amx_tile amx_bf16 amx_int8", True, ("avx512_bf16", "amx_bf16")),
        ("avx512", "avx512_bf16 amx_tile amx_bf16 amx_int8", False, ("avx512_bf16",)),  # the system keeps them
        ("avx512", "avx512_bf16 amx_tile amx_int8", True, ("avx512_bf16",)),
        ("avx512", "avx512_bf16", False, ("avx512_bf16",)),
        ("avx512", "avx512f", True, ()),
        ("avx2", "avx512_bf16 amx_tile amx_bf16", True, ()),  # AVX-512 is not whole, so kernels do not use it
    ],
)
def test_a_unit_for_pairs_needs_its_flags_and_the_leave_of_the_system(isa, flags, tiles, units):
    assert device.pairs_of(isa, set(flags.split()), tiles) == units


def test_devices_that_differ_in_a_unit_have_different_names(cpu, monkeypatch):
    """So that a record made with the unit is never one of a device without."""
    found = {}
    for flags in ("", "avx512_bf16", "avx512_bf16 amx_tile amx_bf16"):
        every = " ".join((*device.AVX512, flags))
        monkeypatch.setattr(device, "cpu_info", lambda every=every: {"flags": every, "model name": "a CPU"})
        monkeypatch.setattr(device, "tiles_granted", lambda: True)
        monkeypatch.setattr(device.platform, "machine", lambda: "x86_64")
        found[flags] = device._device.__wrapped__(2, 2)
    assert [d.arch for d in found.values()] == ["x86_64-avx512", "x86_64-avx512-bf16", "x86_64-avx512-amx"]
    assert len({d.key for d in found.values()}) == 3
    assert [(d.avx512_bf16, d.amx_bf16) for d in found.values()] == [(0, 0), (1, 0), (1, 1)]


def test_generations_sold_under_one_name_have_different_keys():
    epyc = {"vendor_id": "AuthenticAMD", "model name": "AMD EPYC", "cpu family": "25", "model": "17"}
    slugs = {device.names_of(epyc | change, "x86_64")[1] for change in ({}, {"model": "1"}, {"cpu family": "26"})}
    assert slugs == {"amd-epyc-zen4", "amd-epyc-zen3", "amd-epyc-zen5"}
    unknown = epyc | {"cpu family": "99", "model": "3"}
    assert device.names_of(unknown, "x86_64")[1] == "amd-epyc-f99m3"


@pytest.mark.parametrize(
    "name, slug",
    [
        ("Intel(R) Xeon(R) Platinum 8488C", "intel-xeon-platinum-8488c"),
        ("13th Gen Intel(R) Core(TM) i7-1365U", "intel-core-i7-1365u"),
        ("Intel(R) Core(TM) i7-8650U CPU @ 1.90GHz", "intel-core-i7-8650u"),
        ("AMD EPYC 9R14 96-Core Processor", "amd-epyc-9r14"),
        ("", "unknown"),
        ("../é", "unknown"),
    ],
)
def test_slugs_are_short_and_safe(name, slug):
    assert device.slug_of(name) == slug


def test_an_arm_core_is_named_by_its_part(tmp_path):
    write(
        tmp_path,
        cpuinfo="processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\nprocessor\t: 1\nCPU part\t: 0x1\n",
    )
    info = device.cpu_info(str(tmp_path / "cpuinfo"))
    assert device.names_of(info, "aarch64") == ("ARM neoverse-n1", "arm-neoverse-n1")


def test_a_quota_of_an_ancestor_counts(tmp_path):
    write(tmp_path, groups="0::/a/b\n")
    write(tmp_path / "a", **{"cpu.max": "150000 100000\n"})
    write(tmp_path / "a" / "b", **{"cpu.max": "max 100000\n"})
    assert device.cgroup_quota(str(tmp_path), str(tmp_path / "groups")) == 1.5


def test_a_quota_of_the_first_version_counts(tmp_path):
    write(tmp_path, groups="3:cpu:/job\n1:name=systemd:/\n")
    write(tmp_path / "cpu" / "job", **{"cpu.cfs_quota_us": "300000\n", "cpu.cfs_period_us": "100000\n"})
    write(tmp_path / "cpu", **{"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"})
    assert device.cgroup_quota(str(tmp_path), str(tmp_path / "groups")) == 3.0


def test_no_groups_means_no_quota(tmp_path):
    assert device.cgroup_quota(str(tmp_path), str(tmp_path / "groups")) == float("inf")


def test_caches_are_read_and_missing_ones_have_common_sizes(tmp_path):
    write(tmp_path / "index0", level="1", type="Instruction", size="64K", coherency_line_size="64")
    write(tmp_path / "index1", level="1", type="Data", size="128K", coherency_line_size="128")
    write(tmp_path / "index2", level="2", type="Unified", size="12M")
    facts = device.cache_bytes(str(tmp_path))
    assert facts == {"l1d_bytes": 128 << 10, "l2_bytes": 12 << 20, "l3_bytes": 0, "line_bytes": 128}
    assert device.cache_bytes(str(tmp_path / "nothing"))["l2_bytes"] > 0


def test_third_level_caches_are_counted_once_each(tmp_path):
    for core, shared in enumerate(("0-1", "0-1", "2-3", "2-3")):
        write(tmp_path / f"cpu{core}" / "cache" / "index3", shared_cpu_list=shared + "\n")
    assert device.l3_count(str(tmp_path), range(4)) == 2
    assert device.l3_count(str(tmp_path), (2, 3)) == 1
    assert device.l3_count(str(tmp_path / "nothing"), (0,)) == 1
