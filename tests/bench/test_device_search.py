"""The bench of the search on the device: what it counts, and what it says where mctx cannot be imported."""

from packtrain.bench import device_search, search


def test_the_bench_uses_the_device_it_is_given(monkeypatch):
    """Mutation: the CPU's planners are measured whatever --device says."""
    asked = []
    monkeypatch.setattr(device_search, "compare", lambda secs, device: asked.append((secs, device)) or {"lines": []})
    assert search.run(1.0, "cuda:1") == {"lines": []} and asked == [(1.0, "cuda:1")]


def test_rates_are_simulations_of_all_roots(monkeypatch):
    """A decision is one search from every root; the first one is not counted. Mutation: decisions per second."""
    clock = iter(float(tick) for tick in range(1000))
    monkeypatch.setattr(device_search.time, "perf_counter", lambda: next(clock))
    calls = []
    assert device_search._rate(lambda: calls.append(1), each=30, secs=0.5) == 30 / 2
    assert len(calls) == 1 + device_search.ROUNDS


def test_it_runs_and_names_what_is_missing(monkeypatch):
    monkeypatch.setattr(device_search, "_missing", lambda: "mctx")
    found = device_search.compare(0.01, "cpu", many=(2,), simulations=3)
    (case,) = found["cases"]
    assert case["roots"] == 2 and case["rate"] > 0 and case["mctx"] is None
    assert found["lines"][-1] == "mctx is not measured: mctx is not installed"
