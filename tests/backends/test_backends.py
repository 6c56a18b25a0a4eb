import subprocess
import sys

import pytest

from kernsearch import backends
from kernsearch.errors import DeviceError


@pytest.mark.parametrize("spec", ["cpu", "cpu:0"])
def test_the_cpu_is_always_there(spec):
    backend, device = backends.resolve(spec)
    assert (backend.name, device.backend, str(device)) == ("cpu", "cpu", "cpu")


def test_auto_is_a_device_that_works():
    backend, device = backends.resolve("auto")
    assert backend is backends.get(device.backend)


@pytest.mark.parametrize(
    "spec", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:1", "cpu:0:0", "cuda:²", "auto:0", "../cpu"]
)
def test_a_device_that_is_not_one_is_refused_in_one_line(spec):
    with pytest.raises(DeviceError) as refusal:
        backends.resolve(spec)
    assert repr(spec) in str(refusal.value) and "want" in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_backend_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(backends, "names", lambda: ("cpu",))
    backends.get.cache_clear()
    with pytest.raises(DeviceError, match="no usable CUDA backend is installed"):
        backends.resolve("cuda:1")
    backends.get.cache_clear()


@pytest.mark.parametrize("name", backends.names())
def test_every_backend_offers_what_the_protocol_names(name):
    wanted = [step for step in vars(backends.Backend) if not step.startswith("_")]
    assert wanted and all(callable(getattr(backends.get(name), step)) for step in wanted)
    assert backends.get(name).name == name


def test_asking_for_the_cpu_imports_no_heavy_module():
    code = "import sys; from kernsearch import backends; b, d = backends.resolve('cpu'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"joblib", "optuna", "networkx", "numpy", "rich"} & set(loaded)
