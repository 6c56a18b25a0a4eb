import pytest


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory):
    """Objects of these tests are kept in a folder of their own; nothing of the developer's environment counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(tmp_path_factory.mktemp("home")))
        patch.delenv("KERNSEARCH_CC", raising=False)
        patch.delenv("KERNSEARCH_THREADS", raising=False)
        yield
