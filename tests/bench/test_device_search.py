"""The bench of the search on the device: what it counts, and what it says where mctx cannot be imported."""

from packtrain.bench import device_search, search


def test_the_bench_uses_the_device_it_is_given(monkeypatch):
    """Mutation: the CPU's planners are measured whatever --device says."""
    asked = []
    monkeypatch.setattr(device_search, "compare", lambda secs, device: asked.append((secs, device)) or {"lines": []})
    assert search.run(1.0, "cuda:1") == {"lines": []} and asked == [(1.0, "cuda:1")]


def test_on_the_cpu_the_same_table_follows_that_of_the_planners(monkeypatch):
    """Mutation: it is only printed for another device."""
    monkeypatch.setattr(device_search, "compare", lambda secs, device: {"lines": [f"trees on {device}"]})
    for part, value in (("_case", {}), ("_with_network", {}), ("_growing", {}), ("_lines", ["planners"])):
        monkeypatch.setattr(search, part, lambda *_, value=value: value)
    found = search.run(0.01, "cpu")
    assert found["lines"] == ["planners", "", "trees on cpu"] and found["on_device"] == {"lines": ["trees on cpu"]}


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


def test_it_says_where_mctx_ran_if_that_is_another_device(monkeypatch):
    """A ratio of two devices would say nothing. Mutation: the line left out."""
    case = {"roots": 2, "rate": 3.0, "mctx": 6.0, "ratio": 0.5}
    monkeypatch.setattr(device_search, "_missing", lambda: None)
    monkeypatch.setattr(device_search, "_jax_device", lambda: "cpu")
    assert device_search._lines([case], "cuda", 4)[-1] == "JAX has no such device: mctx ran on cpu"
    assert device_search._lines([case], "cpu", 4)[-1].split() == ["2", "3", "6", "0.50"]
