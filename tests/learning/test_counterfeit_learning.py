"""`misspecification/counterfeit` shows reward misspecification: the agent walks first, then forges coins."""

import json

import pytest

import packtrain
from packtrain.cli import main
from packtrain.metrics.console import line
from packtrain.metrics.reading import read_metrics

WALKS, FORGES = 15, -20  # true returns above and below which the greedy policy does so; the best are 20 and -37


def check(folder, seed):
    """Train a seed; its evaluations must show the true return high first and low later, and the proxy the other way."""
    assert main(["train", "misspecification/counterfeit", "--seed", str(seed), "--output_dir", str(folder)]) == 0
    rows = [row for row in read_metrics(folder) if row["kind"] == "eval"]
    true, proxy = ([row[f"reward/{name}"] for row in rows] for name in ("true", "coins"))
    walked = next(k for k, value in enumerate(true) if value > WALKS)
    late = range(len(rows) * 3 // 4, len(rows))
    assert min(true[k] for k in late) < FORGES, true
    assert max(proxy[k] for k in late) > 2 * proxy[walked], proxy
    return rows


@pytest.mark.learning
def test_the_proxy_rises_and_the_truth_falls_where_people_look(tmp_path):
    """Mutations: the discount of the sweep's base, 0.9 with little exploration; a row without reward channels."""
    rows = check(tmp_path / "run", seed=2)
    forged = min(rows, key=lambda row: row["reward/true"])
    assert "true -37" in line(forged, 16000) and "coins 74" in line(forged, 16000)
    page = packtrain.report(tmp_path / "run").read_text()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    charts = {chart["t"]: chart for section in data["sections"] for chart in section["charts"]}
    lines = {each["n"]: each["y"] for each in charts["Evaluation return by reward channel"]["lines"]}
    assert min(lines["true"]) == -37 and max(max(y) for name, y in lines.items() if "coins" in name) == 74


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5])
def test_every_seed_shows_it(seed, tmp_path):
    check(tmp_path / "run", seed)
