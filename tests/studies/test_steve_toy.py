"""STEVE's toy experiment: a shorter chain with the published outcomes, its targets against the equations, its files."""

import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch

from packtrain.equations.value_expansion import expanded_returns, mve_targets, steve_targets
from packtrain.errors import ConfigError
from packtrain.metrics.reading import read_metrics
from packtrain.studies.steve_toy import (
    EXPECTED,
    FLOOR,
    LEARNERS,
    TABLE_STEPS,
    Curves,
    Tables,
    Toy,
    closing_lines,
    csv,
    draw,
    draw_rollouts,
    run,
    table,
    train,
)

SHORT = Toy(last_state=30, steps=1000, runs=4)  # a third of the chain needs a tenth of the steps


def tables(toy, name, seed=0, initial=None):
    rng = np.random.default_rng(seed)
    if initial is None:
        initial = rng.integers(toy.last_state + 1, size=(toy.members, toy.runs, toy.last_state + 1)).astype(float)
    return Tables(toy, LEARNERS[name], initial, rng)


@pytest.fixture(scope="module")
def short():
    return run(SHORT, seed=1)


def test_a_good_model_helps_and_a_bad_one_ruins_mve_but_not_steve(short):
    """The two outcomes of the paper's figure. Mutation: STEVE's weights uniform; MVE at depth 0; a model without noise.

    All begin near 85, one table near 150. MVE ends near 40 with the noisy model, for ever.
    """
    assert short.steps.tolist() == [1, *range(50, 1001, 50)]
    early, late = ({name: error[at].mean() for name, error in short.error.items()} for at in (8, -1))  # step 400
    assert max(early["mve_oracle"], early["steve_oracle"]) < 0.1 < 5 < early["steve_noisy"] < early["ensemble_q"]
    assert early["ensemble_q"] < early["mve_noisy"]
    assert late["mve_oracle"] < 1e-20 and late["steve_oracle"] < 1e-20
    assert late["mve_noisy"] > 25, "ruined"
    assert late["steve_noisy"] < 0.01, "converges"
    assert late["steve_noisy"] < late["ensemble_q"] / 30
    settled = short.error["mve_noisy"][10:].mean(1)
    assert settled.min() > 25, "a wrong fixed point, not a slow way to the right one"


def test_steve_uses_a_bad_model_less_and_less(short):
    """Depths 0 to 5 with equal weights are a use of 5/6. Mutation: uniform weights."""
    assert set(short.model_use) == {"steve_oracle", "steve_noisy"}
    assert short.model_use["steve_oracle"][-1] == pytest.approx(5 / 6, abs=0.01)
    assert short.model_use["steve_noisy"][-1] < 0.5 < short.model_use["steve_noisy"][0]


def test_published_numbers():
    """Every cell of the published table, 10 runs there and here. Mutations: no noise; weights uniform; one more step.

    Two means of 10 runs differ: by up to 1.35 times where errors are in the hundreds, and more where they fall fast.
    """
    got = table(run(Toy(), seed=0, every=500))
    cells = 0
    for name, row in EXPECTED.items():
        for step, cell in zip(TABLE_STEPS, row, strict=True):
            mean, expected = got[name][step][0], float(re.sub(r" ±.*|,|under |about ", "", cell))
            if "under" in cell or expected == 0:
                assert mean < max(expected, 1e-20), (name, step)
            else:
                times = 1.4 if expected > 100 else 3 if expected > 1 else 10
                assert expected / times < mean < expected * times, (name, step, mean)
            cells += 1
    assert cells == 48
    assert got["mve_noisy"][10_000][0] == pytest.approx(1880, abs=90), "ruined"


def test_paths_and_rewards_of_the_exact_model():
    """Mutation: the reward of where a step leads; one that goes on after the end."""
    toy = Toy(last_state=100, runs=3)
    rollouts = draw_rollouts(toy, np.random.default_rng(0), 400, 2, 1, 3, 0.0)
    assert rollouts.start.shape == (400, 3, 2) and rollouts.path.shape == rollouts.gained.shape == (400, 3, 2, 1, 4)
    assert rollouts.start.min() == 0 and rollouts.start.max() == 100
    for start, path, gained in [
        (50, [51, 52, 53, 54], [-1, -2, -3, -4]),
        (98, [99, 100, 101, 101], [-1, -2, 98, 98]),
        (100, [101, 101, 101, 101], [100, 100, 100, 100]),
    ]:
        where = rollouts.start == start
        assert where.any()
        assert (rollouts.path[where] == path).all() and (rollouts.gained[where] == gained).all()


def test_the_noisy_model_lands_anywhere_but_leaves_the_end_alone():
    """Mutation: noise on the real step; rewards of where it lands; terminal states that are left."""
    toy = Toy(last_state=100, runs=5)
    _, path, gained = draw_rollouts(toy, np.random.default_rng(0), 200, 8, 8, 2, 0.1)
    real, one, two = np.moveaxis(path, -1, 0)
    assert (real == real[..., :1]).all(), "one real step for all rollouts"
    alive = real <= 100
    lost = one[alive] != real[alive] + 1
    assert lost.mean() == pytest.approx(0.1 * 100 / 101, abs=0.005)
    assert (one[~alive] == 101).all() and (two[one == 101] == 101).all()
    landed = one[alive][lost]
    assert landed.min() == 0 and landed.max() == 100 and landed.mean() == pytest.approx(50, abs=2)
    earned = (gained[..., 1] - gained[..., 0])[alive]
    assert (earned == np.where(real[alive] == 100, 100, -1)).all()


@pytest.mark.parametrize(("name", "equation"), [("steve_noisy", steve_targets), ("mve_noisy", mve_targets)])
def test_targets_are_those_of_the_equations(name, equation):
    """Rollouts are transition members, tables are critics. Mutation: no variance between rollouts, or within."""
    toy = Toy(runs=3)
    learner = tables(toy, name)
    for _ in range(150):
        learner.step()
    _, path, gained = (leaf[0] for leaf in draw_rollouts(toy, np.random.default_rng(1), 1, 8, 8, 5, 0.1))
    places = path + np.arange(3)[:, None, None, None] * 102
    got, use = learner.targets(places, gained)
    value = np.stack([learner.q[:, run, path[run]] for run in range(3)])  # [runs, N, members, M, D]
    expansion = expanded_returns(
        torch.from_numpy(gained[..., 0, 0]),
        torch.zeros(6, 3, 8, 8, dtype=torch.float64),
        torch.from_numpy(np.moveaxis(np.diff(gained, axis=-1), -1, 0))[..., None],
        torch.from_numpy(value).permute(4, 0, 2, 3, 1),
        discount=1.0,
        starts=1,
    )
    want = equation(expansion)
    np.testing.assert_allclose(got, want.target[0].numpy())
    if name == "steve_noisy":
        assert use == pytest.approx(1 - want.weight[0, 0].mean().item())


@pytest.mark.parametrize("name", [name for name, learner in LEARNERS.items() if not learner.noisy])
def test_right_tables_stay_right(name):
    """V(s) = s is where exact learners rest. Mutation: any reward, any step of the rollout."""
    toy = Toy(last_state=20, runs=2, horizon=3)
    initial = np.broadcast_to(np.arange(21.0), (8, 2, 21))
    learner = tables(toy, name, initial=initial)
    for _ in range(50):
        learner.step()
    assert learner.error().max() < 1e-20


def test_every_member_updates_one_entry_a_step_and_the_moments_follow():
    """Mutation: one start for all members; moments that are not refreshed."""
    learner = tables(SHORT, "steve_noisy")
    for _ in range(130):  # past a block
        before = learner.q.copy()
        learner.step()
        assert ((learner.q != before).sum(-1) <= 1).all()
    np.testing.assert_allclose(learner.mean, learner.q.mean(0))
    np.testing.assert_allclose(learner.variance, learner.q.var(0))
    assert (learner.q[..., -1] == 0).all()


def test_a_learner_does_not_depend_on_the_others_or_on_who_looks():
    """Mutation: one stream for all."""
    toy = Toy(last_state=10, steps=120, runs=2)
    everybody = run(toy, seed=3, every=40)
    alone = run(toy, seed=3, every=30, learners=("steve_noisy",))
    assert everybody.steps.tolist() == [1, 40, 80, 120] and alone.steps.tolist() == [1, 30, 60, 90, 120]
    np.testing.assert_array_equal(alone.error["steve_noisy"][-1], everybody.error["steve_noisy"][-1])
    other = run(toy, seed=4, every=40, learners=("steve_noisy",))
    assert (other.error["steve_noisy"] != everybody.error["steve_noisy"]).all()


def test_the_picture_says_that_it_is_logarithmic(short):
    """Mutation: no floor, which leaves gaps where errors are 0."""
    text = draw(short)
    tree = ElementTree.fromstring(text)
    words = [element.text for element in tree.iter() if element.tag.endswith("text")]
    assert {learner.label for learner in LEARNERS.values()} <= set(words)
    assert any("log10" in word and str(round(np.log10(FLOOR))) in word for word in words)
    dots = [element for element in tree.iter() if element.tag.endswith("circle")]
    assert len(dots) == len(LEARNERS) * len(short.steps), "an error of 0 is drawn at the floor"


def test_a_filled_folder_has_files_rows_and_words(tmp_path):
    said = []
    for steps in (100, 60):  # a second run replaces what the first left
        said.clear()
        picture = Toy(runs=2, steps=steps).fill(tmp_path / "toy", 2, 20, said.append)
    content = json.loads((tmp_path / "toy" / "toy.json").read_text())
    assert content["settings"]["runs"] == 2 and content["seed"] == 2 and content["steps"] == [1, 20, 40, 60]
    assert set(content["learners"]) == set(LEARNERS)
    assert len(content["learners"]["steve_noisy"]["final_errors"]) == 2
    rows = read_metrics(tmp_path / "toy")
    assert [row["step"] for row in rows] == [1, 20, 40, 60] and not rows.bad_lines
    assert rows[-1]["error/basic_q"] == content["learners"]["basic_q"]["error_mean"][-1]
    assert 0 <= rows[-1]["model_use/steve_noisy"] <= 1
    assert picture == tmp_path / "toy" / "toy.svg" and picture.read_text().startswith("<svg")
    files = {path.stem: np.loadtxt(path, delimiter=",") for path in (tmp_path / "toy" / "Toy-v1").glob("*.csv")}
    assert set(files) == set(LEARNERS) - {"basic_q"} | {"baseline"}
    assert files["baseline"].shape == (2 * 4, 4)
    assert files["baseline"][3::4, 3].tolist() == content["learners"]["basic_q"]["final_errors"]
    assert said[0].startswith("step 20 of 60") and len(said) == 3 + len(LEARNERS)


def test_errors_as_rows_run_after_run():
    """Mutation: runs and steps the other way round; digits lost."""
    assert (
        csv(np.array([1, 50]), np.array([[3.0, 0.1], [2.0, 1e-20]]))
        == "1,1,1,3.0\n50,50,50,2.0\n1,1,1,0.1\n50,50,50,1e-20\n"
    )


def test_the_closing_lines_name_what_was_expected_where_it_applies():
    """Mutation: the wrong column; a comparison with other settings."""
    assert set(EXPECTED) == set(LEARNERS) and {len(cells) for cells in EXPECTED.values()} == {len(TABLE_STEPS)}

    def last(step, **settings):
        error = {"mve_noisy": np.array([[9.0, 9.0], [1800.0, 1900.0]])}
        return closing_lines(Curves(Toy(steps=step, runs=2, **settings), np.array([1, step]), error))

    assert last(10_000) == ["MVE, noisy model    error after 10,000 steps: 1,850 ± 50  (expected 1,880 ± 90)"]
    assert last(3000)[0].endswith("(expected 1,450)")
    assert last(3001)[0].endswith("1,850 ± 50") and last(3000, noise=0.2)[0].endswith("1,850 ± 50")


def test_settings_that_cannot_be_meant(tmp_path):
    for name in ("last_state", "steps", "members", "rollouts", "horizon", "runs"):
        with pytest.raises(ConfigError, match=f"Toy.{name} = 0 must be at least 1"):
            Toy(**{name: 0})
    with pytest.raises(ConfigError, match="Toy.noise = 1.5"):
        Toy(noise=1.5)
    with pytest.raises(ConfigError, match="members = 100000, .* needs 102,000,000 numbers per step"):
        Toy(members=100_000)
    with pytest.raises(ConfigError, match="last_state = 1000000 .* lower one of them"):
        Toy(last_state=1_000_000)
    with pytest.raises(ConfigError, match="every = 0"):
        train(SHORT, 0, every=0)
    with pytest.raises(ConfigError, match="'sarsa' must be one of: basic_q"):
        train(SHORT, 0, learners=("sarsa",))
    with pytest.raises(ConfigError, match="seed = -1"):
        SHORT.fill(tmp_path / "toy", -1, 50, print)
    assert not (tmp_path / "toy").exists(), "refused before anything is written"
