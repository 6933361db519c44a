"""Searches written down: what a file holds, how much of it, and that it can be read again without running anything."""

import io
import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from packtrain.acting.planner_policy import PlannerPolicy
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.state_graph import StateGraph
from packtrain.envs.stream import Stream
from packtrain.errors import ConfigError
from packtrain.planning import trace_states, traces
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.deterministic_mcts import DeterministicMCTSAgent
from packtrain.planning.events import ModelSteps, SearchRecord
from packtrain.planning.leaf_evaluators import RolloutNewLeafRater
from packtrain.planning.learned import LearnedModel
from packtrain.planning.model import CoreModel
from packtrain.planning.shooting import ShootingAgent
from packtrain.planning.stochastic_mcts import StochasticMCTSAgent
from packtrain.planning.trace_states import small_png
from packtrain.planning.traces import Traces, TraceWriter, decode


class Line:
    """Places 0, 1, 2, …: action 1 goes one on, action 0 one back (from 0: nowhere). Place 4 is the goal and pays 1."""

    observation_space: gym.Space = gym.spaces.Box(0, 10, (1,), np.float32)
    action_space: gym.Space = gym.spaces.Discrete(2)
    max_steps = 6

    def initial(self, n, rng):
        return np.zeros(n, np.int64)

    def step(self, states, actions, rng):
        over = states == 4
        after = np.where(over, states, np.maximum(states + 2 * actions - 1, 0))
        solved = (after == 4) & ~over
        return after, solved.astype(np.float32), after == 4, {"solved": solved}

    def observe(self, states):
        return states[:, None].astype(np.float32)


def places(*values):
    return np.array(values, np.int64)


def steps(columns, source, target, states, actions, rewards=None):
    rewards = np.zeros(len(columns), np.float32) if rewards is None else rewards
    return ModelSteps(
        places(*columns), places(*source), places(*target), states, places(*actions), rewards, states == 4
    )


def read(folder):
    return {path.name: json.loads(path.read_text()) for path in sorted(folder.iterdir())}


def scripted(writer, epoch=3):
    """An episode of two steps in columns 4 and 9, of which the planner numbers states 70, 71, … and 4's search has two
    passes, 9's has one without numbers. In the second step 4's planner has a new tree, with number 80."""
    writer.episode_begin(places(4, 9), epoch, places(2, 0))
    writer.pass_begin(places(4, 9))
    writer.model_steps(steps([4, 4, 9], [70, 70, -1], [71, 72, -1], places(1, 3, 1), [0, 1, 1]))
    writer.pass_end(places(4, 9))
    writer.pass_begin(places(4))
    writer.model_steps(steps([4, 4], [72, 72], [70, 73], places(2, 4), [0, 1], np.array([0.0, 1.0], np.float32)))
    writer.pass_end(places(4))
    extras = {"value": np.array([0.5, np.nan], np.float32), "qualities": np.array([[0.0, 1.0], [np.inf, 2.0]])}
    writer.real_steps(places(4, 9), places(3, 1), places(1, 1), np.zeros(2), np.array([False, False]), extras)
    writer.pass_begin(places(4, 9))
    writer.model_steps(steps([4, 9], [80, -1], [81, -1], places(4, 2), [1, 1], np.array([1.0, 0.0], np.float32)))
    writer.pass_end(places(4, 9))
    extras = {"value": np.array([1.0, 0.0], np.float32)}
    writer.real_steps(places(4, 9), places(4, 2), places(1, 1), np.array([1.0, 0.0]), np.array([True, True]), extras)


def test_a_file_holds_what_was_thought_and_what_was_done(tmp_path):
    """Literally, for column 4. Nodes are numbers of states as met: 0 is place 2, 1 place 1, 2 place 3, 3 place 4.

    Mutations: the planner's own numbers; a step from the root that is not known; passes of the decision before.
    """
    scripted(TraceWriter(Traces(), tmp_path / "traces", "Line", 0))
    files = read(tmp_path / "traces")
    assert list(files) == ["ep000003_0004.json", "ep000003_0009.json"]
    file = files["ep000003_0004.json"]
    met = {node: decode(leaves["state"]) for node, leaves in file.pop("states").items()}
    assert {node: (int(place), place.dtype, place.shape) for node, place in met.items()} == {
        node: (place, np.dtype(np.int64), ()) for node, place in {"0": 2, "1": 1, "2": 3, "3": 4}.items()
    }

    def link(begin, end, action, reward=0.0, terminated=False):
        return {"from": begin, "to": end, "action": action, "reward": reward, "terminated": terminated}

    assert file == {
        "version": 2,
        "source": "train",
        "checkpoint": None,
        "actions": [],
        "environment": "Line",
        "epoch": 3,
        "column": 4,
        "cut": False,
        "start": 0,
        "steps": [
            {
                "action": 1,
                "reward": 0.0,
                "ended": False,
                "to": 2,
                "extras": {"value": 0.5, "qualities": [0.0, 1.0]},
                "passes": [[link(0, 1, 0), link(0, 2, 1)], [link(2, 0, 0), link(2, 3, 1, 1.0, True)]],
            },
            {
                "action": 1,
                "reward": 1.0,
                "ended": True,
                "to": 3,
                "extras": {"value": 1.0},
                "passes": [[link(2, 3, 1, 1.0, True)]],
            },
        ],
    }
    other = files["ep000003_0009.json"]
    assert [step["passes"] for step in other["steps"]] == [[[link(-1, 1, 1)]], [[link(-1, 2, 1)]]]
    assert other["steps"][0]["extras"] == {"value": None, "qualities": [None, 2.0]}, "JSON has no word for NaN"


@pytest.mark.parametrize(
    "agent",
    [
        DeterministicMCTSAgent(n_passes=4, use_value_network=False),
        StochasticMCTSAgent(n_passes=4, new_leaf_rater=RolloutNewLeafRater(rollout_time_limit=2)),
        BestFirstSearchAgent(n_nodes_per_step=3, use_value=False),
        ShootingAgent(n_rollouts=4, rollout_time_limit=3),
    ],
    ids=lambda agent: type(agent).__name__,
)
def test_every_link_of_a_real_search_is_a_step_of_the_model(tmp_path, agent):
    """From the state it says it is from, by its action, to the state it says it leads to.

    Mutations: numbers of the planner for nodes; the real state before the step as the root.
    """
    core = Line()
    stream = Stream(FunctionalVectorEnv(core, 3, 0, "raise", "Line", True), 3)
    writer = TraceWriter(Traces(), tmp_path, "Line", 0)
    actor_state = PlannerPolicy(agent, nn.ModuleDict(), torch.device("cpu"), 1, writer).actor_state(stream)
    row = stream.start()
    while True:
        decision = actor_state.act(row)
        if stream.columns.all_ended:
            break
        stream.send(decision.action)
        row = stream.recv()
    files = read(tmp_path)
    assert len(files) == 3
    known = 0
    for file in files.values():
        states = {int(node): decode(leaves["state"]) for node, leaves in file["states"].items()}
        assert len({int(state) for state in states.values()}) == len(states), "equal states are one node"

        def check(begin, link, end, states=states):
            after, reward, terminated, _ = core.step(states[begin][None], places(link["action"]), None)
            assert after[0] == states[end] and reward[0] == link["reward"]
            assert terminated[0] == link.get("terminated", terminated[0])

        here = file["start"]
        for step in file["steps"]:
            check(here, step, step["to"])
            links = [link for one in step["passes"] for link in one]
            assert links or step is not file["steps"][0], "a search that knows everything steps nothing"
            for link in links:
                if link["from"] >= 0:
                    known += 1
                    check(link["from"], link, link["to"])
            here = step["to"]
        assert file["steps"][-1]["ended"] and not any(step["ended"] for step in file["steps"][:-1])
    assert bool(known) != isinstance(agent, ShootingAgent), "shooting keeps no states"


def test_a_file_is_bounded(tmp_path, monkeypatch):
    """What was done is always there; model steps end with a limit, of their number or of the bytes of states.

    Mutations: no limit; a limit that loses real steps; empty passes without end after it.
    """
    scripted(TraceWriter(Traces(max_model_steps=3), tmp_path / "steps", "Line", 0))
    file = read(tmp_path / "steps")["ep000003_0004.json"]
    assert file["cut"] and [[len(one) for one in step["passes"]] for step in file["steps"]] == [[2, 1], []]
    assert [step["action"] for step in file["steps"]] == [1, 1]
    assert not read(tmp_path / "steps")["ep000003_0009.json"]["cut"]
    monkeypatch.setattr(trace_states, "STATE_BYTES", 16)  # two places
    scripted(TraceWriter(Traces(), tmp_path / "bytes", "Line", 0))
    file = read(tmp_path / "bytes")["ep000003_0004.json"]
    assert file["cut"] and [[len(one) for one in step["passes"]] for step in file["steps"]] == [[1], []]


def test_some_episodes_are_sampled(tmp_path):
    """By chance, the same ones for the same seed. Mutations: the first ones; all columns of an epoch or none."""

    def names(rate, seed, folder):
        writer = TraceWriter(Traces(sample_rate=rate, max_files=10_000), tmp_path / folder, "Line", seed)
        columns = np.arange(25)
        for epoch in range(20):
            writer.episode_begin(columns, epoch, np.zeros(25, np.int64))
            writer.real_steps(columns, columns, columns, columns, np.ones(25, bool), {})
        return set(read(tmp_path / folder)) if (tmp_path / folder).is_dir() else set()

    some = names(0.2, 1, "a")
    assert 70 < len(some) < 130 and some == names(0.2, 1, "b") != names(0.2, 2, "c")
    assert len({name[:8] for name in some}) == 20 and len({name[-9:] for name in some}) > 20
    assert len(names(1.0, 1, "d")) == 500 and names(0.0, 1, "e") == set()


def test_there_are_no_more_files_than_allowed(tmp_path):
    """Of all runs of the folder together. Mutation: counting from 0 after a resume."""
    for epochs in (range(5), range(5, 10)):
        writer = TraceWriter(Traces(max_files=3), tmp_path, "Line", 0)
        for epoch in epochs:
            scripted(writer, epoch)
        assert len(read(tmp_path)) == 3


def test_an_episode_that_is_broken_off_leaves_nothing(tmp_path):
    writer = TraceWriter(Traces(), tmp_path, "Line", 0)
    writer.episode_begin(places(4), 0, places(2))
    writer.model_steps(steps([4], [5], [6], places(3), [1]))
    scripted(writer)
    assert len(read(tmp_path)) == 2
    assert len(read(tmp_path)["ep000003_0004.json"]["steps"][0]["passes"]) == 2, "nothing is left of the one before"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.uint8).reshape(2, 3),
        np.array([1.5, -0.0, np.nan, np.inf]),
        np.float32(2.5),
        np.zeros((0, 3), np.int16),
        np.array([True, False]),
        np.arange(12).reshape(3, 4).T,
        np.array([1, 2], ">i4"),
    ],
    ids=str,
)
def test_arrays_come_back_to_the_last_bit(array):
    """Through JSON. Mutations: the layout in memory for the order of the array; native byte order."""
    back = decode(json.loads(json.dumps(traces._encoded(array))))
    assert back.shape == np.shape(array) and back.dtype == np.asarray(array).dtype
    assert np.ascontiguousarray(array).tobytes() == back.tobytes()


def test_states_are_named_and_objects_are_left_out(tmp_path):
    """A simulator's snapshots are objects: they are not written, and nothing that could run code is.

    Mutation: pickling them.
    """
    snapshots = np.empty(1, object)
    snapshots[0] = print
    states = {"state": snapshots, "obs": {"left": np.ones((1, 2), np.float32)}, "key": np.zeros(1, np.uint64)}
    writer = TraceWriter(Traces(), tmp_path, "Line", 0)
    writer.episode_begin(places(0), 0, states)
    writer.real_steps(places(0), states, places(0), np.zeros(1), np.ones(1, bool), {})
    (file,) = read(tmp_path).values()
    assert file["states"].keys() == {"0"} and file["states"]["0"].keys() == {"obs/left", "key"}
    assert decode(file["states"]["0"]["obs/left"]).tolist() == [1, 1]
    with pytest.raises((TypeError, ValueError)):
        decode(["|O", [1], "AAAAAAAAAAA="])


@pytest.mark.parametrize(
    "values, message",
    [
        ({"sample_rate": 1.5}, r"Traces.sample_rate = 1.5 must lie in \[0, 1\]"),
        ({"max_model_steps": 0}, "Traces.max_model_steps = 0 must be at least 1"),
        ({"max_files": 0}, "Traces.max_files = 0 must be at least 1"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        Traces(**values)


class Drawable(Line):
    """The line with a text for each state."""

    def render(self, states, mode):
        assert mode == "ansi" and states.shape == (1,)
        return "." * int(states[0]) + "X"


def test_states_are_written_as_texts_too(tmp_path):
    """Mutation: the text of another state of the batch."""
    writer = TraceWriter(Traces(texts=True), tmp_path, "line", 0)
    writer.look_at(Drawable(), CoreModel(Drawable()))
    writer.episode_begin(places(0), 0, places(2))
    writer.pass_begin(places(0))
    writer.model_steps(steps((0, 0), (7, 7), (8, 9), places(3, 1), (1, 0)))
    writer.real_steps(places(0), places(3), places(1), np.zeros(1), np.ones(1, bool), {})
    (trace,) = read(tmp_path).values()
    numbers = {int(decode(state["state"])): node for node, state in trace["states"].items()}
    assert trace["texts"] == {numbers[2]: "..X", numbers[3]: "...X", numbers[1]: ".X"}


def test_texts_need_an_environment_that_renders_them(tmp_path):
    writer = TraceWriter(Traces(texts=True), tmp_path, "line", 0)
    with pytest.raises(ConfigError, match="line has no text rendering"):
        writer.look_at(Line(), CoreModel(Line()))
    TraceWriter(Traces(), tmp_path, "line", 0).look_at(Line(), CoreModel(Line()))


# -- what version 2 adds


def tell(writer, action=1, **fields):
    """A search of column 0 with two nodes: the root and the state that an action leads to."""
    nodes = {"visits": np.array([3, 2])}
    edges = {"from": np.array([0]), "to": np.array([1]), "action": np.array([action]), "visits": np.array([2])}
    edges |= {"value": np.array([np.inf])} | fields
    record = SearchRecord("Test", "tree", nodes, edges, [0], numbers=np.array([7, 8]))
    writer.searched(places(0), lambda row, most: record)


def test_a_search_is_written_with_its_states(tmp_path):
    """Nodes are those of the model steps; rewards are the last ones told. Mutations: numbers of the planner; NaN."""
    writer = TraceWriter(Traces(), tmp_path, "line", 0)
    writer.episode_begin(places(0), 0, places(2))
    writer.model_steps(steps((0, 0), (7, 7), (8, -1), places(3, 1), (1, 0), np.array([0.5, 0.0], np.float32)))
    tell(writer)
    writer.real_steps(places(0), places(3), places(1), np.zeros(1), np.ones(1, bool), {})
    (file,) = read(tmp_path).values()
    search = file["steps"][0]["search"]
    assert search == {
        "planner": "Test",
        "kind": "tree",
        "left_out": 0,
        "path": [0],
        "nodes": {"state": [0, 1], "visits": [3, 2]},
        "edges": {
            **{"from": [0], "to": [1], "action": [1], "visits": [2], "value": [None], "reward": [0.5]},
            "terminated": [False],
        },
    }
    assert decode(file["states"]["1"]["state"]) == 3


def test_what_does_not_fit_is_left_out_and_said(tmp_path):
    """Passes first, then the search, then states; real steps never. Mutation: a file beyond its limit."""
    sizes = {}
    for most in (100_000, 1_300, 500, 120):
        folder = tmp_path / str(most)
        writer = TraceWriter(Traces(max_bytes=most), folder, "line", 0)
        writer.episode_begin(places(0), 0, places(2))
        writer.model_steps(steps([0] * 9, [7] * 9, [8] * 9, places(*[3] * 9), [1] * 9))
        tell(writer)
        writer.real_steps(places(0), places(3), places(1), np.zeros(1), np.ones(1, bool), {})
        (file,) = read(folder).values()
        step = file["steps"][0]
        sizes[most] = (bool(step.get("passes")), "search" in step, len(file["states"]), file["cut"])
        assert step["action"] == 1
    assert sizes == {
        100_000: (True, True, 2, False),
        1_300: (False, True, 2, True),
        500: (False, False, 2, True),
        120: (False, False, 0, True),
    }


def recorded(folder, epochs, spread=3):
    """Play epochs of one step; return the epochs whose files are there."""
    for epoch in epochs:
        writer = TraceWriter(Traces(spread=spread), folder, "line", 0)  # as if resumed before each
        writer.planned = epoch
        writer.episode_begin(places(0, 1), 100, places(2, 2))
        writer.real_steps(places(0, 1), places(3, 3), places(1, 1), np.zeros(2), np.ones(2, bool), {})
    return [int(path.stem[6:]) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []


def test_the_episodes_of_the_flag_are_spread_over_the_run(tmp_path):
    """Few enough at any time, the first one always, at equal distances. Mutations: the first ones; all columns."""
    for end in range(1, 40):
        found = recorded(tmp_path, [end - 1])
        assert 1 <= len(found) <= 3 and found[0] == 0
        assert len({b - a for a, b in zip(found, found[1:], strict=False)}) <= 1
    assert found == [0, 16, 32]
    assert recorded(tmp_path, [32], spread=1) == [0]


def test_random_episodes_are_not_recorded_by_the_flag(tmp_path):
    assert recorded(tmp_path, [None]) == []


def test_an_evaluation_records_its_first_episodes(tmp_path):
    """Also one that is cut off. Mutations: an episode beyond those; the cut one lost."""
    writer = TraceWriter(Traces(spread=2), tmp_path, "line", 0, checkpoint=500)
    writer.episode_begin(places(0, 1, 2), 0, places(2, 2, 2))
    over = np.array([True, False, True])
    writer.real_steps(places(0, 1, 2), places(3, 3, 3), places(1, 1, 1), np.zeros(3), over, {})
    assert list(read(tmp_path)) == ["eval0000000500_0000.json"]
    writer.finish()
    files = read(tmp_path)
    assert list(files) == ["eval0000000500_0000.json", "eval0000000500_0001.json"]
    assert {(file["source"], file["checkpoint"]) for file in files.values()} == {("eval", 500)}
    assert not files["eval0000000500_0001.json"]["steps"][-1]["ended"]


def test_pictures_are_small_and_exact():
    """A PNG of blocks has one pixel for each; a large one is thinned. Mutation: rows of another width."""
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 255, (5, 7, 3)).astype(np.uint8)
    image = pytest.importorskip("PIL.Image")
    for picture, expected in (
        (colours.repeat(16, axis=0).repeat(16, axis=1), colours),
        (colours, colours),
        (rng.integers(0, 255, (200, 100, 3)).astype(np.uint8), None),
    ):
        back = np.asarray(image.open(io.BytesIO(small_png(picture))))
        assert (back == (picture[::3, ::3] if expected is None else expected)).all() and max(back.shape) <= 96


# -- learned models


class LyingNetwork(nn.Module):
    """Two members that predict Hanoi's steps rightly, but that some moves change nothing; they disagree about these."""

    members = 2

    def __init__(self, core, lies):
        super().__init__()
        graph = StateGraph(core)
        self._after = torch.from_numpy(core.observe(graph.states)[graph.edges])  # [N, A, D]
        self._obs = torch.from_numpy(core.observe(graph.states))
        self._ends = torch.from_numpy(graph.terminated[graph.edges])
        self._lies = lies  # (state, action)

    def forward(self, inputs):
        obs, action = inputs["obs"], inputs["action"].long()
        number = (obs[:, None] == self._obs[None]).all(-1).int().argmax(1)
        delta = self._after[number, action] - obs
        ends = self._ends[number, action]
        lied = torch.tensor([(n, a) in self._lies for n, a in zip(number.tolist(), action.tolist(), strict=True)])
        delta = torch.where(lied[:, None], torch.zeros_like(delta), delta)
        doubt = torch.where(lied[:, None], torch.full_like(delta, 0.2), torch.zeros_like(delta))
        sure = torch.where(ends & ~lied, 9.0, -9.0)[:, None].expand(-1, 2)
        return {"delta": torch.stack([delta + doubt, delta - doubt], 1), "reward": sure, "terminated": sure}


def play_liar(folder, agent, lies, verified_edges="graph", decisions=12):
    core = Hanoi(2)
    stream = Stream(FunctionalVectorEnv(core, 2, 0, "raise", "Hanoi", True), 2)
    writer = TraceWriter(Traces(texts=True, pictures=True), folder, "Hanoi", 0)
    network = nn.ModuleDict({"model": LyingNetwork(core, lies)})
    model = LearnedModel(members=2, mask_size=None, verified_edges=verified_edges)
    policy = PlannerPolicy(agent, network, torch.device("cpu"), 1, writer, model)
    actor_state = policy.actor_state(stream)
    row = stream.start()
    for _ in range(decisions):
        decision = actor_state.act(row)
        if stream.columns.all_ended:
            break
        stream.send(decision.action)
        row = stream.recv()
    actor_state.finish(row)
    return read(folder)["ep000000_0000.json"]


VERIFIES = BestFirstSearchAgent(
    n_nodes_per_step=4,
    use_value=False,
    expand_heuristic="bonus",
    top_level_heuristic="solved_then_auxiliary_then_bonus",
    avoid_history_coeff=-0.2,
    bonus_quantile_threshold=0.5,
    rejection_probability=0.0,
)


def test_a_false_loop_and_its_verification_are_in_the_trace(tmp_path):
    """The model says that a move of the start changes nothing: a loop whose truth is another state, then verified.

    Mutations: the truth of another edge; the prediction taken from the corrected graph; no verification mark.
    """
    file = play_liar(tmp_path, VERIFIES, {(0, 0)})
    first, start = file["steps"][0], file["start"]
    edges, state = first["search"]["edges"], first["search"]["nodes"]["state"]
    root = [edge for edge, source in enumerate(edges["from"]) if source == 0]
    assert state[0] == start and [edges["action"][edge] for edge in root] == [0, 1, 2, 3, 4, 5]
    wrong = [edge for edge, truth in enumerate(edges["truth"]) if truth != state[edges["to"][edge]]]
    assert wrong == [root[0]] and edges["to"][root[0]] == 0, "the lie, and no other edge"
    assert [edge for edge, value in enumerate(edges["disagreement"]) if value > 0] == wrong
    assert first["extras"]["verified"] and first["action"] == 0
    assert first["predicted"]["to"] == start != first["to"] == edges["truth"][root[0]]
    assert not any(edges["verified"])
    later = file["steps"][1]["search"]
    place, edges = later["nodes"]["state"].index(start), later["edges"]
    again = next(e for e, pair in enumerate(zip(edges["from"], edges["action"], strict=True)) if pair == (place, 0))
    assert edges["verified"][again] and sum(edges["verified"]) == 1
    assert later["nodes"]["state"][edges["to"][again]] == edges["truth"][again] == first["to"]


@pytest.mark.parametrize(
    "agent",
    [VERIFIES, DeterministicMCTSAgent(n_passes=6, use_value_network=False)],
    ids=lambda agent: type(agent).__name__,
)
def test_real_states_and_predicted_ones_meet(tmp_path, agent):
    """In a learned model, too: without lies every real state was predicted, and states are observations.

    Mutations: keys of the simulator's states; the members of the ensemble in the key.
    """
    file = play_liar(tmp_path, agent, set(), "run")
    assert len(file["states"]) <= 9, "Hanoi with two disks has nine states"
    assert all(set(state) == {"obs"} for state in file["states"].values())
    for step in file["steps"]:
        assert step["predicted"]["to"] == step["to"] in step["search"]["nodes"]["state"]
        edges, state = step["search"]["edges"], step["search"]["nodes"]["state"]
        assert [state[to] for to in edges["to"]] == edges["truth"]
    assert set(file["texts"]) == set(file["pictures"]) == set(file["states"]), "those that were only predicted, too"
    assert any(any(step["search"]["edges"]["verified"]) for step in file["steps"][1:])


def test_a_search_without_recording_is_the_same(tmp_path):
    """A listener changes no decision. Mutation: any draw of a random number for a record."""
    for agent in (VERIFIES, DeterministicMCTSAgent(n_passes=6, use_value_network=False)):
        taken = []
        for writer in (None, TraceWriter(Traces(), tmp_path / "a", "Hanoi", 0)):
            core = Hanoi(3)
            stream = Stream(FunctionalVectorEnv(core, 2, 0, "raise", "Hanoi", True), 2)
            network = nn.ModuleDict({"model": LyingNetwork(core, {(0, 1), (3, 2)})})
            model = LearnedModel(members=2, mask_size=None)
            actor_state = PlannerPolicy(agent, network, torch.device("cpu"), 1, writer, model).actor_state(stream)
            row, actions = stream.start(), []
            for _ in range(12):
                decision = actor_state.act(row)
                actions.append(decision.action.copy())
                stream.send(decision.action)
                row = stream.recv()
            taken.append(np.stack(actions))
        assert (taken[0] == taken[1]).all()
