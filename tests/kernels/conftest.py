import pytest

from kernsearch import backends
from kernsearch.worker import Worker


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory):
    """Objects of these tests are kept in a folder of their own; nothing of the developer's environment counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(tmp_path_factory.mktemp("home")))
        patch.delenv("KERNSEARCH_CC", raising=False)
        patch.delenv("KERNSEARCH_THREADS", raising=False)
        yield


@pytest.fixture(scope="module")
def device():
    return backends.get("cpu").device()


@pytest.fixture(scope="module")
def worker(device):
    with Worker(device, run_timeout_s=10.0, threads=2) as worker:
        yield worker
