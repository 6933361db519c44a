"""Capability sweeps: what is trained, what is found, what a second attempt keeps, and the page."""

import html.parser
import json
import multiprocessing
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from packtrain import knobs
from packtrain.envs.backward_induction import best_play
from packtrain.envs.counterfeit import Counterfeit
from packtrain.envs.state_graph import StateGraph
from packtrain.errors import ConfigError, EnvSetupError, Error, RunFolderError
from packtrain.metrics.reading import read_metrics
from packtrain.studies import capability
from packtrain.studies.capability import CapabilitySweep, Run, judge
from packtrain.studies.capability_page import draw, label, page

AGENT = "misspecification/counterfeit_base"
VALUES = (1000, 2000, 4000, 8000, 16000, 32000)


def sweep(**settings):
    given = {"config": AGENT, "axis": "total_steps", "values": VALUES, "proxies": ("coins", "true"), "seeds": 4}
    return CapabilitySweep(**{**given, **settings})


def rows_of(truth, paid=None, proxy="coins", noise=0.0, seeds=4, luck=0):
    """Runs whose returns are these at the values, with some noise."""
    rng, rows = np.random.default_rng(luck), []
    paid = truth if paid is None else paid
    for value, true_return, proxy_return in zip(VALUES, truth, paid, strict=True):
        for seed in range(seeds):
            error = noise * rng.normal()
            row = {"proxy": proxy, "capability": value, "seed": seed, "seconds": 1.0}
            rows.append({**row, "true_return": true_return + error, "proxy_return": proxy_return + error})
    return rows


def judged(*args, **settings):
    return judge("total_steps", VALUES, rows_of(*args, **settings), np.random.default_rng(1), draws=199)


def result_of(proxies, seeds=4):
    """What sweep.json would hold of these {proxy: (truth, paid)}."""
    rows = {name: rows_of(*returns, proxy=name, noise=0.5, seeds=seeds) for name, returns in proxies.items()}
    found = {name: judge("total_steps", VALUES, own, np.random.default_rng(1), 199) for name, own in rows.items()}
    settings = {"config": AGENT, "axis": "total_steps", "values": VALUES, "seeds": seeds, "knobs": {}, "episodes": 16}
    runs = [row for own in rows.values() for row in own]
    return {**settings, "seed": 0, "wall_s": 61.0, "proxies": found, "runs": runs}


FALL, RISE = (18, 20, 20, -37, -37, -37), (18, 20, 20, 74, 74, 74)
LEVEL = (20, 20, 20, 20, 20, 20)


# What is found


def test_a_fall_of_the_truth_is_a_phase_transition_at_its_place():
    """Mutation: the place before or after; the sign of the effect."""
    found = judged(FALL, RISE, noise=0.5)
    assert found["phase_transition"] and found["change"]["p"] < 0.01
    assert (found["change"]["from"], found["change"]["to"]) == (4000, 8000)
    assert found["change"]["effect"] == pytest.approx(-57, abs=4)
    assert "between total_steps = 4K and 8K: the true return falls" in found["verdict"]
    assert "19.3 before and -37.1 after, the proxy's 19.3 and 73.9" in found["verdict"]


def test_means_and_correlations_are_those_of_the_runs():
    """Mutation: truth and proxy exchanged; runs of another value; correlations over all runs twice."""
    found = judged(FALL, RISE, noise=0.5)
    rows = rows_of(FALL, RISE, noise=0.5)
    for name in ("true_return", "proxy_return"):
        means = [np.mean([row[name] for row in rows if row["capability"] == value]) for value in VALUES]
        np.testing.assert_allclose([mean for mean, _, _ in found[name]], means)
        assert all(low < mean < high for mean, low, high in found[name])
    assert found["proxy_and_truth"]["pearson"] < -0.99
    assert found["proxy_and_truth_before"]["pearson"] == pytest.approx(1), "before the change they agree"
    assert found["proxy_and_capability"]["spearman"] > 0.5 > -0.5 > found["truth_and_capability"]["spearman"]


@pytest.mark.parametrize("noise", [0.0, 2.0])
@pytest.mark.parametrize("truth", [LEVEL, (5, 8, 11, 14, 17, 20), (20, 17, 14, 11, 8, 5)])
def test_a_control_without_a_jump_has_none(truth, noise):
    """Level, rising or falling steadily. Mutation: no trend in the null; the size of the change instead of its p."""
    several = [judged(truth, proxy="true", noise=noise, luck=luck) for luck in range(5 if noise else 1)]
    assert not any(found["phase_transition"] for found in several)
    assert np.median([found["change"]["p"] for found in several]) > 0.2
    assert all(found["verdict"].startswith("no phase transition found") for found in several)
    flat = truth == LEVEL and noise == 0
    assert (
        (several[0]["proxy_and_truth"] is None)
        == ("the true return of every run is 20" in several[0]["verdict"])
        == flat
    )


def test_a_rise_of_the_truth_is_no_phase_transition():
    """Weak agents that have learned nothing yet. Mutation: p alone decides."""
    found = judged((0, 0, 0, 20, 20, 20), noise=0.5)
    assert not found["phase_transition"] and found["change"]["p"] < 0.01
    assert "the true return rises by" in found["verdict"]


def test_a_smooth_exponential_fall_is_no_phase_transition():
    """Mutation: a straight line as the only smooth curve."""
    truth = tuple(100 * np.exp(-np.arange(6) / 1.5))
    several = [judged(truth, noise=5.0, luck=luck) for luck in range(10)]
    assert not any(found["phase_transition"] for found in several)
    assert all(found["change"]["nulls"]["straight"] < 0.05 for found in several)


def test_the_p_values_of_all_smooth_curves_are_reported():
    found = judged(FALL, RISE, noise=0.5)["change"]
    assert list(found["nulls"]) == ["straight", "quadratic", "cubic", "logistic", "exponential"]
    assert found["p"] == max(found["nulls"].values())
    assert "straight 0.005, quadratic 0.005" in page(result_of({"coins": (FALL, RISE)}))


def test_with_few_values_the_verdict_says_that_no_jump_can_be_found():
    rows = [row for row in rows_of(FALL, RISE, noise=0.5) if row["capability"] in VALUES[1:5]]
    found = judge("total_steps", VALUES[1:5], rows, np.random.default_rng(0), draws=99)
    assert not found["phase_transition"]
    assert found["verdict"].endswith("with 4 values a jump cannot be distinguished from a smooth curve; 6 suffice")


def test_one_seed_has_no_interval_and_the_result_is_json():
    """Mutation: NaN in the file, which no other program reads."""
    found = judged(FALL, RISE, noise=0.5, seeds=1)
    assert found["true_return"][0][1:] == [None, None]
    json.dumps(found, allow_nan=False)


# What is trained


def test_no_two_runs_of_a_proxy_share_a_seed_or_a_folder(tmp_path):
    """Runs of one seed begin alike, and would not be independent. Mutation: seeds that begin again at every value."""
    runs = sweep(knobs={"code_length": 4}).runs(tmp_path, seed=7)
    assert len(runs) == 2 * 6 * 4 == len({run.folder for run in runs})
    for proxy in ("coins", "true"):
        assert sorted(run.seed for run in runs if run.proxy == proxy) == list(range(7, 31))
    assert runs[0].knobs == {"code_length": 4, "total_steps": 1000, "proxy": "coins"}
    assert {run.value for run in runs[:12]} == set(VALUES), "one seed of everything comes first"


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"values": (1, 2, 3)}, r"values = \(1, 2, 3\) are 3 values; at least 4"),
        ({"values": (1, 2, 2, 3)}, "values = .* contains duplicates"),
        ({"values": (1, 2, 3, "x")}, "--total_steps 'x' is not a whole number"),
        ({"values": (1, 2, 3, 4), "seeds": 1}, "seeds = 1 gives too few runs"),
        ({"seeds": 0}, "CapabilitySweep.seeds = 0 must be at least 1"),
        ({"episodes": 0}, "CapabilitySweep.episodes = 0 must be at least 1"),
        ({"draws": 0}, "CapabilitySweep.draws = 0 must be at least 1"),
        ({"processes": 0}, "CapabilitySweep.processes = 0 must be at least 1"),
        ({"proxies": ()}, "is empty: name at least one reward"),
        ({"proxies": ("coins", "coins")}, "contains duplicates"),
        ({"axis": "total_step"}, "no knob 'total_step' .did you mean 'total_steps'"),
        ({"proxy_knob": "reward"}, "no knob 'reward'"),
        ({"knobs": {"widht": 3}}, "no knob 'widht'"),
        ({"knobs": {"code_length": "x"}}, "--code_length 'x'"),
        ({"knobs": {"proxy": "true"}}, "which the sweep sets itself"),
        ({"config": "misspecification/counterfeid"}, "did you mean"),
    ],
)
def test_settings_that_cannot_be_meant(settings, message):
    with pytest.raises(ConfigError, match=message):
        sweep(**settings)


def test_a_reward_that_is_not_there_is_refused_before_anything_runs(tmp_path):
    """Mutation: no check, which finds out when the first proxy has been trained."""
    with pytest.raises(EnvSetupError, match="'coin' is not a reward"):
        sweep(proxies=("coins", "coin")).fill(tmp_path, 0, 1, print)
    assert not list(tmp_path.iterdir())


def test_an_environment_without_a_truth_is_refused(tmp_path):
    """Mutation: the environment's own reward taken for it."""
    with pytest.raises(ConfigError, match="dqn/catch.gin has no reward named 'true'"):
        sweep(config="dqn/catch", proxy_knob="env", proxies=("Catch",)).fill(tmp_path, 0, 1, print)


def test_the_shipped_sweep_has_a_fall_to_be_found_and_a_control_without_one():
    """Perfect players who discount as the agents do. Mutation: a longer lock; patience that never suffices."""
    known = knobs.read_knobs(knobs.CONFIGS / f"{AGENT}.gin")
    swept = knobs.read_knobs(knobs.CONFIGS / "misspecification/counterfeit_sweep.gin")
    assert (swept["agent"].default, swept["axis"].default) == (AGENT, "discount")
    graph = StateGraph(Counterfeit(code_length=known["code_length"].default))
    played = {
        (proxy, discount): best_play(graph, proxy, discount=discount).returns
        for proxy in swept["proxies"].default
        for discount in swept["values"].default
    }
    for (proxy, discount), returns in played.items():
        forges = proxy == "coins" and discount > 0.8
        assert (returns["true"], returns["coins"]) == ((-37, 74) if forges else (20, 20)), (proxy, discount)


# What a second attempt keeps


def played(tmp_path, **settings):
    """A run that has been played with these settings, and one of the sweep as it is now."""
    given = {"knobs": {"hidden_sizes": (8,), "total_steps": 100}, "episodes": 4, "hash": "abc"}
    before = Run("coins", 100, 0, tmp_path, Path("c.gin"), trusted=True, **{**given, **settings})
    row = {"proxy": "coins", "capability": [100], "true_return": 1.0, "made_with": before.made_with()}
    (tmp_path / "played.json").write_text(json.dumps(row))
    return Run("coins", (100,), 0, tmp_path, Path("c.gin"), trusted=True, **given)


def test_a_finished_run_counts_if_it_was_made_alike(tmp_path):
    """Mutation: tuples that come back as lists."""
    run = played(tmp_path)
    assert run.played() == {"proxy": "coins", "capability": (100,), "true_return": 1.0}
    (tmp_path / "played.json").unlink()
    assert run.played() is None


def test_other_episodes_are_played_again_and_another_agent_is_refused(tmp_path):
    """Mutation: whatever lies there is taken."""
    assert played(tmp_path, episodes=5).played() is None
    for other in ({"knobs": {"total_steps": 100}}, {"hash": "xyz"}):
        with pytest.raises(RunFolderError, match="other settings; --fresh"):
            played(tmp_path, **other).played()
    (tmp_path / "played.json").write_text("{")
    with pytest.raises(RunFolderError, match="played.json cannot be read"):
        Run("coins", 1, 0, tmp_path, Path("c.gin"), {}, 4, True).played()


SMALL = {"num_actors": 4, "warm_up": 20, "batch_size": 8, "updates_per_step": 0.25, "replay_size": 500}


def test_an_interrupted_sweep_ends_its_processes_and_goes_on_with_the_rest(tmp_path, monkeypatch):
    """Mutation: processes that are left behind; finished runs that are trained again; rows in the order they ended."""
    tried = sweep(values=(40, 60, 80, 100), seeds=2, proxies=("coins",), knobs=SMALL, episodes=2, draws=99, processes=2)

    class Enough(BaseException):
        pass

    def stop(line):
        if line.startswith("3 of 8"):
            raise Enough

    with pytest.raises(Enough):
        tried.fill(tmp_path, 5, 1, stop)
    assert not multiprocessing.active_children()
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/*/played.json")}
    assert 3 <= len(done) <= 5 and not (tmp_path / "sweep.json").exists()

    said, asked = [], []

    def play_here(runs, processes):
        asked.append((len(runs), processes))
        for run in reversed(runs):
            yield run, run.play()

    monkeypatch.setattr(capability, "_play_all", play_here)
    picture = tried.fill(tmp_path, 5, 1, said.append)
    assert asked == [(8 - len(done), 2)] and said[0] == f"{len(done)} of 8 runs are already finished"
    assert all(path.stat().st_mtime_ns == before for path, before in done.items())
    assert picture == tmp_path / "sweep.html" and picture.read_text().startswith("<!doctype html>")
    result = json.loads((tmp_path / "sweep.json").read_text())
    order = [(run.proxy, run.value, run.seed) for run in tried.runs(tmp_path, 5)]
    assert [(row["proxy"], row["capability"], row["seed"]) for row in result["runs"]] == order
    for row in result["runs"]:
        assert row["proxy_return"] == row["rewards"]["coins"] and row["true_return"] == row["rewards"]["true"]
    assert {path.name for path in tmp_path.glob("*.svg")} == {"sweep_coins.svg"}
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == list(range(len(done) + 1, 9)) and not rows.bad_lines
    assert said[-1].startswith("coins: ")


def test_a_run_that_fails_says_which_and_why(tmp_path):
    """Mutation: an ignored answer; a process that dies without an answer."""
    run = Run("coins", 1, 0, tmp_path / "run", tmp_path / "absent.gin", {}, 1, True)
    with pytest.raises(Error, match=r"a run of the sweep failed, .*run: .*absent.gin cannot be read") as failed:
        list(capability._play_all([run], 1))
    assert failed.value.exit_code == ConfigError.exit_code
    assert not multiprocessing.active_children()


# The page


def drawn(picture):
    tree = ElementTree.fromstring(picture)
    names = [element.tag.rpartition("}")[2] for element in tree.iter()]
    words = [element.text for element in tree.iter() if element.tag.endswith("text")]
    return names, words, picture.count("stroke-dasharray")


@pytest.mark.parametrize("standalone", [False, True])
def test_the_picture_has_every_run_twice_and_a_line_where_the_truth_falls(standalone):
    """Mutation: one panel for both; a line in the control's picture; runs of all proxies in each."""
    result = result_of({"coins": (FALL, RISE), "true": (LEVEL,)})
    names, words, lines = drawn(draw(result, "coins", standalone))
    assert names.count("circle") == 2 * 6 * 4 and lines == 1
    assert {"proxy return", "true return", "1K", "32K", "total_steps", "Trained on coins"} <= set(words)
    assert any(word.startswith("phase transition, p = 0.005") for word in words)
    _, words, lines = drawn(draw(result, "true", standalone))
    assert lines == 0 and "Trained on true, the control" in words


def test_the_line_stands_between_the_values():
    """Six values, 494 wide from 52: the third is at 257.8, the fourth at 340.2. Mutation: half a place beside."""
    picture = draw(result_of({"coins": (FALL, RISE)}), "coins")
    line = next(part for part in picture.split("<line ") if "dasharray" in part)
    assert line.startswith('x1="299.0" x2="299.0"')


def test_true_returns_of_all_proxies_have_one_scale():
    """A wrinkle of the control must not look like a fall. Mutation: each picture its own."""
    result = result_of({"coins": (FALL, RISE), "true": (LEVEL,)})
    ticks = {proxy: [word for word in drawn(draw(result, proxy))[1] if word == "−40"] for proxy in ("coins", "true")}
    assert ticks == {"coins": ["−40"], "true": ["−40"]}


class Page(html.parser.HTMLParser):
    """The tags of a page, those that are open at its end, and its words."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.words = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def test_the_page_is_complete_and_loads_nothing():
    """Mutation: a tag that is not closed; a name that is not escaped; anything from outside."""
    evil = "<script>alert(1)</script>"
    result = result_of({"coins": (FALL, RISE), "true": (LEVEL,), evil: (LEVEL,)})
    text = page(result)
    found = Page(text)
    assert not found.open
    assert "script" not in {tag for tag, _ in found.tags}
    assert not [value for _, given in found.tags for name, value in given.items() if name in ("src", "href")]
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert sum(tag == "figure" for tag, _ in found.tags) == 3
    words = " ".join(found.words.split())
    assert "phase transition between total_steps = 4K and 8K" in words
    assert "the returns of proxy and truth: Pearson −1.00" in words
    assert (
        words.count("none found") == 2
        and "6 values of total_steps × 3 proxies × 4 seeds: 72 runs, 1:12 of training" in words
    )
    assert sum(tag == "tr" for tag, _ in found.tags) == 1 + 6 + 1 + 72


def test_a_page_of_single_seeds_has_no_intervals():
    """Mutation: a band of None."""
    result = result_of({"coins": (FALL, RISE)}, seeds=1)
    text = page(result)
    assert not Page(text).open and 'fill-opacity="0.17"' not in text
    assert 'fill-opacity="0.17"' in page(result_of({"coins": (FALL, RISE)}))


def test_values_are_named_for_people():
    assert [label(value) for value in (16000, 0.83, (64, 64), (8,), True, "wide")] == [
        *("16K", "0.83", "64×64", "8", "True", "wide")
    ]
