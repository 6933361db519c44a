"""Searches and their arrays run in two ways."""

import pytest

from packtrain.planning import kernels


@pytest.fixture(params=["numpy", "kernels"], scope="module")
def way(request):
    """Everything in NumPy, then with kernels: compiled where numba is installed, else the same lines in Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "compiled", request.param == "kernels")
        yield
