"""Gin files of Alpacka and trust-but-verify: what becomes of each binding, and files that mean harm."""

import pytest

from packtrain import config
from packtrain.cli import main
from packtrain.convert import alpacka_gin, alpacka_names

SHOOTING = """
import alpacka.agents
Runner.agent_class = @alpacka.agents.ShootingAgent
Runner.batch_stepper_class = @alpacka.batch_steppers.LocalBatchStepper
Runner.env_class = @alpacka.envs.CartPole
Runner.episode_time_limit = 50
Runner.n_envs = 8
Runner.n_epochs = 1
Runner.trainer_class = @alpacka.trainers.DummyTrainer
CartPole.solved_at = 500
ShootingAgent.n_rollouts = 20
ShootingAgent.rollout_time_limit = 10
ShootingAgent.agent_class = @alpacka.agents.RandomAgent
ShootingAgent.n_envs = 4
ShootingAgent.estimate_fn = @truncated_return
ShootingAgent.aggregate_fn = @np.max
"""

TBV = """
N_DISKS = 7
Runner.env_class = @alpacka.envs.Hanoi
Runner.agent_class = @alpacka.agents.BestFirstSearchAgent
Runner.network_class = @agent/alpacka.networks.KerasNetwork
Runner.trainer_class = @agent/alpacka.trainers.SupervisedTrainer
Runner.model_class = @alpacka.envs.TrainableHanoi
Runner.model_network_class = @model/alpacka.networks.EnsembleNetwork
Runner.model_trainer_class = @model/alpacka.trainers.SupervisedTrainer
Runner.n_envs = 32
Runner.n_epochs = 200
Runner.n_precollect_epochs = 5
Runner.episode_time_limit = 1000
Runner.n_model_precollect_episodes = 1000
Runner.n_model_pretrain_epochs = 100
Runner.fine_tune_on_agent_data = True
Runner.log_graph_distances = True
Hanoi.n_disks = %N_DISKS
TrainableHanoi.ensemble_mask_size = 4
BestFirstSearchAgent.gamma = 0.99
BestFirstSearchAgent.n_nodes_per_step = 10
BestFirstSearchAgent.expand_heuristic = @alpacka.agents.bonus
BestFirstSearchAgent.top_level_heuristic = @alpacka.agents.solved_then_auxiliary_then_bonus
BestFirstSearchAgent.bonus_quantile_threshold = 0.9
ScalarValueTraits.avoid_history_coeff = -0.2
agent/KerasNetwork.model_fn = @agent/mlp
agent/KerasNetwork.optimizer = @RMSprop()
agent/mlp.hidden_sizes = (50, 50)
RMSprop.learning_rate = 0.0003
agent/SupervisedTrainer.target = @target_value
agent/SupervisedTrainer.batch_size = 32
model/EnsembleNetwork.n_networks = 8
model/KerasNetwork.weight_decay = 1e-4
model/mlp.hidden_sizes = (250, 250)
model/SupervisedTrainer.batch_size = 1024
model/SupervisedTrainer.target = @target_model_delta
"""

MCTS = """
Runner.agent_class = @alpacka.agents.StochasticMCTSAgent
Runner.env_class = @alpacka.envs.Sokoban
Runner.network_class = @alpacka.networks.KerasNetwork
Runner.trainer_class = @alpacka.trainers.SupervisedTrainer
Runner.n_epochs = 3
Runner.callback_classes = [@greedy/EvaluationCallback, @GraphSizeCallback]
greedy/EvaluationCallback.eval_period = 5
greedy/EvaluationCallback.n_envs = 2
Sokoban.num_boxes = 2
StochasticMCTSAgent.n_passes = 30
StochasticMCTSAgent.n_leaves_to_expand = 10
StochasticMCTSAgent.new_leaf_rater_class = @QualityNetworkNewLeafRater
QualityNetworkNewLeafRater.use_policy = True
SupervisedTrainer.target = (@target_qualities, @target_action_histogram_smooth)
KerasNetwork.model_fn = @convnet_mnist
KerasNetwork.optimizer = 'adam'
convnet_mnist.n_conv_layers = 4
convnet_mnist.d_conv = 16
"""


def converted(tmp_path, text, *flags):
    source = tmp_path / "old.gin"
    source.write_text(text)
    assert main(["convert", str(source), "--out", str(tmp_path / "new.gin"), *flags]) == 0
    loaded = config.load([tmp_path / "new.gin"], [], {})
    return config.build(loaded), loaded.values


def test_shooting_keeps_its_numbers_and_trains(tmp_path, capsys):
    """Mutation: functions are written as references."""
    experiment, values = converted(tmp_path, SHOOTING)
    said = capsys.readouterr().out
    assert values["ShootingAgent.n_rollouts"] == "20" and values["ShootingAgent.aggregate_fn"] == "'max'"
    assert values["ShootingAgent.rollout_agent"] == "None" and values["Runner.n_envs"] == "8"
    assert "ShootingAgent.n_envs = 4  →  left out" in said and "aggregate_fn = @max  →" in said
    assert experiment.streams.num_actors == 8 and experiment.streams.episode_time_limit == 50
    run = ["train", str(tmp_path / "new.gin"), "--output_dir", str(tmp_path / "run"), "--runtime", "serial"]
    assert main([*run, "--config", "ShootingAgent.n_rollouts = 2", "--config", "Runner.n_envs = 1"]) == 0


def test_two_scopes_become_two_networks(tmp_path, capsys):
    """Mutations: "model/" is dropped like "agent/"; one learning rate reaches only one of the networks."""
    _, values = converted(tmp_path, TBV)
    said = capsys.readouterr().out
    wanted = {
        "Hanoi.disks": "7",
        "LearnedModel.mask_size": "4",
        "LearnedModel.members": "8",
        "EnsembleMlp.members": "8",
        "EnsembleMlp.hidden_sizes": "(250, 250)",
        "Mlp.hidden_sizes": "(50, 50)",
        "ExpertIteration.optimiser": "'rmsprop'",
        "ExpertIteration.learning_rate": "0.0003",
        "ExpertIteration.weight_decay": "0.0",
        "WorldModelLearning.learning_rate": "0.0003",
        "WorldModelLearning.weight_decay": "0.0001",
        "SupervisedTrainer.batch_size": "32",
        "WorldModelTrainer.batch_size": "1024",
        "SupervisedTrainer.targets": "{'value': 'value'}",
        "BestFirstSearchAgent.bonus_quantile_threshold": "0.9",
        "BestFirstSearchAgent.avoid_history_coeff": "-0.2",
        "BestFirstSearchAgent.expand_heuristic": "'bonus'",
        "Runner.n_model_precollect_episodes": "1000",
    }
    assert {name: values.get(name) for name in wanted} == wanted
    assert "What means something else:" in said and "rounded up" in said and "factored = False" in said
    assert "left out: Runner.log_graph_distances" in (tmp_path / "new.gin").read_text()


def test_scoped_evaluations_raters_and_policy_targets(tmp_path, capsys):
    _, values = converted(tmp_path, MCTS)
    assert values["SupervisedTrainer.targets"] == "{'logits': 'action_histogram_smooth', 'quality': 'qualities'}"
    assert values["QualityNetworkNewLeafRater.use_policy"] == "True"
    assert values["greedy/EvaluationCallback.eval_period"] == "5" and values["ConvNet.d_conv"] == "16"
    assert "took one more step" in capsys.readouterr().out


def test_what_nothing_uses_is_left_out_and_said(tmp_path, capsys):
    """Mutation: the file would be refused when it is trained."""
    _, values = converted(tmp_path, SHOOTING + "BanditAgent.n_rollouts = 3\nSokoban.num_boxes = 2\n")
    said = capsys.readouterr().out
    assert "BanditAgent.n_rollouts = 3  →  left out: nothing in this configuration uses it" in said
    assert "Sokoban.num_boxes = 2  →  left out" in said and "BanditAgent.n_rollouts" not in values


def test_football_is_refused_unless_another_environment_is_named(tmp_path, capsys):
    text = SHOOTING.replace("@alpacka.envs.CartPole", "@alpacka.envs.GoogleFootball").replace("CartPole.solved", "#")
    (tmp_path / "old.gin").write_text(text)
    argv = ["convert", str(tmp_path / "old.gin"), "--out", str(tmp_path / "new.gin")]
    assert main(argv) == 2 and not (tmp_path / "new.gin").exists()
    assert "GoogleFootball" in capsys.readouterr().err
    assert main([*argv, "--env", "Hanoi"]) == 0


HOSTILE = {
    "a module that would be imported": "import trap\n" + SHOOTING,
    "a module in a from import": "from trap import *\n" + SHOOTING,
    "code as a value": SHOOTING + "Runner.n_epochs = __import__('trap')\n",
    "a call": SHOOTING + "Runner.n_epochs = print(1)\n",
    "an include": "include '/etc/passwd'\n" + SHOOTING,
    "nesting": SHOOTING + f"Runner.env_kwargs = {'[' * 5000}\n",
    "no gin": "\x00\x01\x02",
    "nothing": "",
    "no runner": "A.b = 1\n",
    "an environment of a module": SHOOTING.replace("@alpacka.envs.CartPole", "'trap:Trap'"),
    "dynamic registration": "import __gin__.dynamic_registration\nimport trap\n" + SHOOTING,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_run_nothing(tmp_path, monkeypatch, capsys, name):
    """Mutation: the file is parsed by gin.parse_config, which imports modules."""
    (tmp_path / "trap.py").write_text("import pathlib\npathlib.Path(__file__).with_name('sprung').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "old.gin").write_text(HOSTILE[name])
    code = main(["convert", "old.gin", "--out", "new.gin"])
    said = capsys.readouterr()
    assert not (tmp_path / "sprung").exists()
    assert code == 2 or ("trap" not in (tmp_path / "new.gin").read_text().replace("left out: import trap", ""))
    if code:
        assert code == 2 and len(said.err.strip().splitlines()) == 1 and "Traceback" not in said.err


def test_an_existing_file_is_not_replaced(tmp_path, capsys):
    (tmp_path / "old.gin").write_text(SHOOTING)
    (tmp_path / "new.gin").write_text("kept")
    assert main(["convert", str(tmp_path / "old.gin"), "--out", str(tmp_path / "new.gin")]) == 2
    assert (tmp_path / "new.gin").read_text() == "kept"


def test_every_name_of_ours_in_the_tables_exists():
    """Mutation: a parameter is renamed and the table is forgotten."""
    for owner, parameter in [*alpacka_names.PARAMETERS.values(), *alpacka_names.CALLED, *alpacka_names.VALUES]:
        assert parameter in config._signatures[owner], (owner, parameter)
    for owner in alpacka_names.OWNERS.values():
        assert owner in config._signatures
    for name, _ in alpacka_names.MEANINGS:
        owner, _, parameter = name.partition(".")
        assert not name or parameter in config._signatures[owner], name
    assert alpacka_gin.OPTIMISERS["adam"] == "adam"
