"""Every test starts from gin's empty configuration and torch's one thread."""

import pytest


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory, monkeypatch):
    """Notes of runs that tests make do not reach the user's home."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture(autouse=True)
def clean_configuration():
    yield
    import sys

    if "packtrain.config" in sys.modules:
        import gin

        from packtrain import config

        gin.clear_config()
        config._state = None


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    import torch

    torch.set_num_threads(1)
