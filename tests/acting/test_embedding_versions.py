"""Versions of an embedding: which environment uses which weights, how many are held, and which one is replaced."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from packtrain.accelerate.precision import without_tf32
from packtrain.acting.embedding_versions import EmbeddingVersions
from packtrain.errors import ConfigError
from packtrain.networks.action_values import Novelty
from packtrain.networks.embedding import ControllableEmbedding
from packtrain.types import Spec

SPEC = Spec(gym.spaces.Box(-9, 9, (3,), np.float32), gym.spaces.Discrete(4))
OBS = torch.tensor([[0.5, -1.0, 2.0]]).expand(1, 4, 3)
NO = torch.zeros(1, 4, dtype=torch.bool)


def make(slots, size=4):
    torch.manual_seed(0)
    network = ControllableEmbedding(hidden_sizes=(), size=2, inverse_size=4).build(SPEC)
    return network, EmbeddingVersions(network, size, slots)


def publish(network, number):
    """Weights with which the embedding of any observation is (number, number)."""
    with torch.no_grad():
        for leaf in network.torso.parameters():
            leaf.fill_(number if leaf.ndim == 1 else 0.0)
    return torch.tensor(number)


def embed(versions):
    return versions.embed(OBS, NO)[:, 0].tolist()


def begin(versions, which, version):
    return versions.begin_episodes(torch.tensor([c in which for c in range(4)]), version).tolist()


def test_an_environment_takes_new_weights_only_at_the_start_of_its_episode():
    """Mutations: all environments of the group switch; none does."""
    network, versions = make(4)
    assert begin(versions, {0, 1, 2, 3}, publish(network, 1)) == [True] * 4
    version = publish(network, 2)
    assert begin(versions, {}, version) == [False] * 4 and embed(versions) == [1, 1, 1, 1]
    assert begin(versions, {1, 3}, version) == [False, True, False, True] and embed(versions) == [1, 2, 1, 2]
    begin(versions, {3}, publish(network, 3))
    assert embed(versions) == [1, 2, 1, 3]


def test_no_more_versions_are_held_than_allowed_and_none_in_use_is_overwritten():
    """With two slots in use, the newest version held is used; an unused version is replaced."""
    network, versions = make(2)
    begin(versions, {0, 1, 2, 3}, publish(network, 1))
    begin(versions, {1}, publish(network, 2))
    version = publish(network, 3)
    begin(versions, {2}, version)
    assert embed(versions) == [1, 2, 2, 1]
    begin(versions, {0, 3}, version)  # the first version is not used any more
    assert embed(versions) == [3, 2, 2, 3]
    begin(versions, {1}, version)
    assert embed(versions) == [3, 3, 2, 3] and sorted(versions.state["embedding_version"].tolist()) == [2, 3]


def test_with_one_slot_weights_change_when_all_episodes_begin_at_once():
    network, versions = make(1)
    begin(versions, {0, 1, 2, 3}, publish(network, 1))
    begin(versions, {0, 1, 2}, publish(network, 2))
    assert embed(versions) == [1, 1, 1, 1]
    begin(versions, {0, 1, 2, 3}, publish(network, 3))
    assert embed(versions) == [3, 3, 3, 3]


@pytest.mark.parametrize("seed", range(3))
def test_many_episodes_agree_with_a_plain_account(seed):
    """Every environment uses the weights that were the newest, or the newest held, when its episode began."""
    rng = np.random.default_rng(seed)
    network, versions = make(3)
    mine = {}
    for number in range(60):
        version = publish(network, number)
        first = {c for c in range(4) if number == 0 or rng.random() < 0.25}
        begin(versions, first, version)
        still = {mine[c] for c in range(4) if c not in first}
        for column in first:
            mine[column] = number if len(still) < 3 else max(still)
        assert embed(versions) == [mine[c] for c in range(4)], number
        assert len(set(mine.values())) <= 3


def test_embedding_by_all_versions_equals_embedding_each_row_by_its_own():
    """What a captured decision computes on a GPU. Mutation: rows mixed up."""
    network, versions = make(3)
    for number, first in enumerate(({0, 1, 2, 3}, {1}, {3})):
        torch.manual_seed(number)
        with torch.no_grad():
            for leaf in network.parameters():
                leaf.normal_()
        begin(versions, first, torch.tensor(number))
    obs = torch.randn(1, 4, 3)
    assert versions.state["embedding_slot"].unique().numel() == 3
    torch.testing.assert_close(versions.embed(obs, NO), versions._embed_by_all(obs, NO))


def test_all_tensors_stay_in_place():
    """A captured decision reads and writes the same memory every time."""
    network, versions = make(2)
    before = {name: leaf.data_ptr() for name, leaf in versions.state.items()}
    for number in range(4):
        begin(versions, {number}, publish(network, number))
        embed(versions)
    versions.begin()
    assert {name: leaf.data_ptr() for name, leaf in versions.state.items()} == before
    assert versions.state["embedding_slot"].tolist() == [-1] * 4


def test_no_decision_of_a_gpu_reads_data_on_the_host():
    """A captured decision must not. Mutation: an index without dimensions."""
    _, versions = make(3)
    with FakeTensorMode(allow_non_fake_inputs=True):
        versions._take_newest(torch.zeros(4, dtype=torch.bool), torch.zeros((), dtype=torch.int64))
        assert versions._embed_by_all(torch.zeros(1, 4, 3), torch.zeros(1, 4, dtype=torch.bool)).shape == (4, 2)


def test_full_float32_is_asked_for_and_given_back():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with without_tf32():
        assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.allow_tf32
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_no_slot_at_all_is_refused():
    with pytest.raises(ConfigError, match=r"Novelty\.versions = 0 must be at least 1"):
        Novelty(versions=0)
