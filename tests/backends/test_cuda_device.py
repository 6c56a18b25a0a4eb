"""Devices of the CUDA backend: those that are there, those to compile for, and why none can be used."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict

import pytest

from kernsearch import backends
from kernsearch.backends.cuda import architectures, device, nvml
from kernsearch.errors import DeviceError
from kernsearch.report import doctor

BACKEND = backends.get("cuda")
FACTS = {
    "sms", "threads", "cores", "cc_major", "cc_minor", "shared_block_bytes", "shared_sm_bytes", "shared_reserved_bytes",
    "registers_sm", "max_threads_block", "max_threads_sm", "max_blocks_sm", "l2_bytes", "memory_bytes",
    "memory_clock_khz", "memory_bus_bits", "sm_clock_khz", "line_bytes", "warp", "ecc",
}  # fmt: skip


def problem(index: int = 0) -> str:
    with pytest.raises(DeviceError) as refusal:
        BACKEND.device(index)
    assert "\n" not in str(refusal.value) and str(refusal.value).startswith(f"cuda:{index}: ")
    return str(refusal.value)


@pytest.fixture
def as_if(monkeypatch: pytest.MonkeyPatch):
    """A machine with a driver for CUDA `supports` and packages for CUDA `packages`; so many GPUs, or what is wrong."""

    def make(*, supports: int = 13000, packages: int = 13, count: int | str = 1, lacks: str = "") -> None:
        monkeypatch.setattr(device, "has_driver", lambda: True)
        monkeypatch.setattr(device, "installed", lambda module: module != lacks)
        monkeypatch.setattr(device, "driver_cuda", lambda: supports)
        monkeypatch.setattr(device, "bindings_major", lambda: packages)
        monkeypatch.setattr(device, "_count", lambda: count)

    return make


@pytest.mark.parametrize("arch", architectures.known())
def test_an_architecture_to_compile_for_has_the_facts_of_a_device(arch):
    found = BACKEND.compile_only(arch)
    assert (found.backend, found.arch) == ("cuda", arch) and set(found.facts) == FACTS
    assert found.shared_block_bytes <= found.shared_sm_bytes and found.cc_major * 10 + found.cc_minor >= 75
    assert arch == architectures.arch_of(found.cc_major, found.cc_minor)


@pytest.mark.parametrize("arch", ["", "sm_70", "sm_80a", "sm_99", "90a", "compute_90", "sm_90b"])
def test_an_architecture_that_is_not_known_is_refused_in_one_line(arch):
    with pytest.raises(DeviceError, match=f"architecture '{arch}': want one of sm_75, "):
        BACKEND.compile_only(arch)


def test_an_architecture_has_its_own_instructions_where_the_compiler_knows_some():
    found = [architectures.arch_of(*cc) for cc in ((7, 5), (8, 9), (9, 0), (10, 0), (12, 0))]
    assert found == ["sm_75", "sm_89", "sm_90a", "sm_100a", "sm_120a"]


def test_without_a_driver_the_message_says_so(monkeypatch):
    monkeypatch.setattr(device, "has_driver", lambda: False)
    assert "no NVIDIA driver" in problem()


@pytest.mark.parametrize(("module", "package"), device.NEEDED.items())
def test_a_missing_package_is_named_with_the_extra_that_brings_it(as_if, module, package):
    as_if(lacks=module)
    assert f'the package {package} is missing: pip install "kernsearch[cuda13]"' in problem()
    as_if(lacks=module, supports=12040)
    assert "kernsearch[cuda12]" in problem()


def test_a_driver_that_is_too_old_for_the_packages_is_named(as_if):
    as_if(supports=12080, packages=13)
    said = problem()
    assert "supports CUDA 12.8" in said and "for CUDA 13" in said and "kernsearch[cuda12]" in said


@pytest.mark.parametrize(("count", "words"), [(0, "no GPU"), (1, "this machine has 1"), ("it is ill", "it is ill")])
def test_an_index_past_the_last_gpu_says_how_many_there_are(as_if, count, words):
    as_if(count=count)
    assert words in problem(3)


def test_auto_means_the_cpu_where_no_gpu_can_be_used(monkeypatch):
    monkeypatch.setattr(device, "has_driver", lambda: False)
    assert backends.resolve("auto")[1].backend == "cpu"


def test_looking_for_a_gpu_in_vain_imports_nothing_for_it():
    code = """if True:
        import sys
        from kernsearch import backends
        from kernsearch.backends.cuda import device
        device.has_driver = lambda: False
        backends.resolve("auto")
        print(*sys.modules)
    """
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"cupy", "cuda", "cuda.bindings", "pynvml", "numpy", "optuna"} & set(loaded)


def test_the_state_of_a_device_that_is_not_here_is_nothing():
    assert nvml.state(BACKEND.compile_only("sm_75")) is None
    assert nvml.state(backends.get("cpu").device()) is None


def test_what_holds_the_clocks_back_is_told_in_words():
    assert nvml.words(0) == nvml.words(0x1 | 0x2) == ()
    assert nvml.words(0x4 | 0x40) == ("power cap", "temperature (hardware)")


@pytest.mark.gpu
def test_a_gpu_has_all_facts(gpu):
    assert set(gpu.facts) == FACTS and gpu.arch.startswith("sm_") and gpu.key.startswith("cuda-nvidia-")
    assert gpu.memory_bytes > 1 << 30 and gpu.warp == 32 and str(gpu) == "cuda:0"


@pytest.mark.gpu
def test_looking_at_a_gpu_leaves_no_context_behind(gpu):
    code = """if True:
        from kernsearch import backends
        from kernsearch.backends.cuda import nvml
        from cuda.bindings import driver
        nvml.state(backends.get("cuda").device(0))
        _, current = driver.cuCtxGetCurrent()
        _, _, active = driver.cuDevicePrimaryCtxGetState(0)
        print(int(current), active)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"]


@pytest.mark.gpu
def test_the_table_agrees_with_the_driver(gpu):
    try:
        nominal = BACKEND.compile_only(gpu.arch)
    except DeviceError:
        pytest.skip(f"{gpu.arch} is not in the table")
    same = (
        "shared_block_bytes", "shared_sm_bytes", "shared_reserved_bytes", "registers_sm", "max_threads_block",
        "max_threads_sm", "max_blocks_sm", "line_bytes", "warp",
    )  # fmt: skip
    assert {fact: gpu.facts[fact] for fact in same} == {fact: nominal.facts[fact] for fact in same}


@pytest.mark.gpu
def test_the_driver_tells_its_version_and_the_state_of_the_gpu(gpu):
    version = BACKEND.driver(gpu)
    assert version is not None and version.replace(".", "").isdigit()
    state = nvml.state(gpu)
    if state is not None:
        assert (state.sm_mhz or 1) > 0 and (state.temperature_c or 1) > 0


@pytest.mark.gpu
def test_an_index_past_the_last_gpu_is_refused(gpu):
    assert "this machine has" in problem(99)


@pytest.mark.gpu
def test_hidden_gpus_cannot_be_used(gpu):
    code = "from kernsearch import backends; print(backends.resolve('auto')[1].backend); backends.resolve('cuda')"
    done = subprocess.run(
        ["env", "CUDA_VISIBLE_DEVICES=", sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout == "cpu\n" and "no GPU that this process may use" in done.stderr


def test_doctor_says_why_there_is_no_gpu_and_is_content(monkeypatch, capsys):
    monkeypatch.setattr(device, "has_driver", lambda: False)
    findings = doctor.examine()
    assert findings["ok"] and findings["cuda"]["devices"] == []
    doctor.print_findings(findings)
    assert "cuda      cuda:0: no NVIDIA driver" in capsys.readouterr().out


def test_doctor_shows_a_gpu_with_its_driver_and_what_holds_it_back(capsys):
    findings = doctor.examine()
    state = asdict(nvml.State(sm_mhz=1200, power_w=699.6, throttled=("power cap",)))
    of_hopper = BACKEND.compile_only("sm_90a")
    gpu = {"name": "NVIDIA H200", "arch": "sm_90a", "state": state, **of_hopper.facts}
    found = {"problem": None, "devices": [gpu], "driver": "580.95.05", "cuda": "13.0", "nvrtc": "13.0.88"}
    doctor.print_findings({**findings, "cuda": found})
    said = capsys.readouterr().out
    assert "cuda:0 NVIDIA H200 (sm_90a), 132 SMs, 140 GiB" in said
    assert "now 1200 MHz, 700 W; held back: power cap" in said
    assert "driver 580.95.05 (CUDA 13.0), NVRTC 13.0.88, CuPy" in said


@pytest.mark.gpu
def test_doctor_finds_the_gpu(gpu, capsys):
    findings = doctor.examine()
    assert findings["cuda"]["problem"] is None and findings["cuda"]["devices"][0]["key"] == gpu.key
    doctor.print_findings(findings)
    assert f"cuda:0 {gpu.name}" in capsys.readouterr().out
