"""What the docs say is there: links, paths, names, commands, flags, files and metrics."""

import ast
import importlib
import json
import re
import shlex
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import packtrain
from packtrain import cli, config, knobs
from packtrain.errors import ConfigError

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = ("console", "sh", "bash", "shell")
BASE = knobs.CONFIGS / "impala" / "base.gin"

# Every flag of monobeast, polybeast_learner and polybeast_env with its default (MonoBeast's where both have it).
TORCHBEAST_FLAGS = {
    "env": "PongNoFrameskip-v4",
    "mode": "train",
    "xpid": None,
    "disable_checkpoint": False,
    "savedir": "~/logs/torchbeast",
    "num_actors": 4,
    "total_steps": 100000,
    "batch_size": 8,
    "unroll_length": 80,
    "num_buffers": None,
    "num_learner_threads": 2,
    "num_threads": 2,
    "num_inference_threads": 2,
    "disable_cuda": False,
    "use_lstm": False,
    "num_actions": None,
    "max_learner_queue_size": None,
    "entropy_cost": 0.0006,
    "baseline_cost": 0.5,
    "discounting": 0.99,
    "reward_clipping": "abs_one",
    "learning_rate": 0.00048,
    "alpha": 0.99,
    "momentum": 0,
    "epsilon": 0.01,
    "grad_norm_clipping": 40.0,
    "pipes_basename": "polybeast",
    "write_profiler_trace": False,
    "num_servers": 4,
}
GLOSSARY = (
    "row, first, terminated, truncated, filler row, trajectory, unroll, context, carry, extras, "
    "reward channel, episode, spec, tree, environment, core, group, stream, actor step, actor state, actor, policy, "
    "boundary, memory, sample, learner, update, weights, version, policy lag, step, frame, config, knob, "
    "binding, program flag, seed, experiment, schedule, runtime, evaluator, run folder, metric row, "
    "checkpoint, resume, bound"
).split(", ")


# -- reading markdown


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of every fenced block."""
    return re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", text, re.M | re.S)


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def inline_code(text: str) -> list[str]:
    """What stands in backticks outside of fenced blocks; a line break inside counts as a space."""
    paragraphs = re.split(r"\n\s*\n", prose(text))
    return [" ".join(code.split()) for one in paragraphs for code in re.findall(r"`([^`]+)`", one)]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: list[str] = []
    for title in re.findall(r"^#+ +(.*?) *$", prose(text), re.M):
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found.append(slug if slug not in found else f"{slug}-{found.count(slug)}")
    return set(found)


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        inside = target.exists() and target.is_relative_to(ROOT)
        if not inside or (anchor and anchor not in anchors(text if target == page else target.read_text())):
            broken.append(link)
    return broken


def is_placeholder(path: str) -> bool:
    return any(re.fullmatch(r"[A-Z][A-Z_]*", part.partition(".")[0]) for part in path.split("/"))


def missing_paths(text: str) -> list[str]:
    """Paths of the repository in backticks that are not there; a Gymnasium id of ours only looks like one."""
    found = [code.rstrip("/") for code in inline_code(text)]
    paths = [code for code in found if re.fullmatch(r"(packtrain|docs|tests|benchmarks|\.ci)/[\w./*-]+", code)]
    paths = [path for path in paths if not is_placeholder(path) and not re.fullmatch(r"packtrain/\w+-v\d+", path)]
    return [path for path in paths if not list(ROOT.glob(path))]


def missing_names(text: str) -> list[str]:
    """Dotted names of the package in backticks that do not lead anywhere."""
    missing = []
    for code in inline_code(text):
        match = re.fullmatch(r"(packtrain(?:\.[a-zA-Z_]\w*)+)(\(.*\))?", code)
        if match and not re.search(r"\.[A-Z_]+$", match[1]) and not resolves(match[1]):
            missing.append(code)
    return missing


def resolves(dotted: str) -> bool:
    thing = importlib.import_module("packtrain")
    for name in dotted.split(".")[1:]:
        try:
            thing = importlib.import_module(f"{thing.__name__}.{name}")  # a module wins over a function of its name
        except (ImportError, AttributeError):
            if not hasattr(thing, name):
                return False
            thing = getattr(thing, name)
    return True


def unknown_parameters(text: str) -> list[str]:
    """`Owner.parameter` in backticks where Owner is configurable and has no such parameter."""
    importlib.import_module("packtrain.algorithms.impala")
    importlib.import_module("packtrain.runtime.experiment")
    unknown = []
    for code in inline_code(text):
        match = re.fullmatch(r"([A-Z]\w*)\.([a-z]\w*)( = .*)?", code)
        if match and match[1] in config._signatures and match[2] not in config._signatures[match[1]]:
            unknown.append(code)
    return unknown


def command_lines(text: str) -> list[str]:
    """The lines of shell blocks that are commands and not marked as of a later release."""
    lines: list[str] = []
    for language, content in blocks(text):
        if language in SHELLS:
            joined = content.replace("\\\n", " ").splitlines()
            prompted = [line[2:] for line in joined if line.startswith("$ ")]  # then the others are output
            lines += prompted or joined
    return [line for line in lines if "# not yet" not in line]


def packtrain_calls(line: str) -> list[list[str]]:
    """The arguments of each call of packtrain in a shell line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    calls: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("();<>|&"):
            calls.append([">"] if set(word) & set("<>") else [])
        else:
            calls[-1].append(word)
    return [argv for argv in map(_arguments, calls) if argv is not None]


def _arguments(words: list[str]) -> list[str] | None:
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if not words:
        return None
    program = Path(words[0]).name
    if program == "packtrain":
        return words[1:]
    if program.startswith("python") and words[1:3] == ["-m", "packtrain"]:
        return words[3:]
    if program.startswith("python") and words[1:3] == ["-m", "packtrain.runner"]:
        return ["train", *words[3:]]
    return None


def section(page: str, title: str) -> str:
    """A page's text from a heading to the next of its rank or above."""
    text = (ROOT / page).read_text()
    match = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,3}} |\Z)", text, re.M | re.S)
    assert match, f"{page} has no section {title!r}"
    return match[2]


def table(text: str) -> list[list[str]]:
    """The cells of all table rows, headings included, without the rule below them."""
    lines = [line.strip("|") for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return [row for row in rows if not set("".join(row)) <= set("-| ")]


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# -- links, paths, names


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page):
    assert not broken_links(page, page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_paths_exist(page):
    assert not missing_paths(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_names_exist(page):
    assert not missing_names(page.read_text())
    assert not unknown_parameters(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_nothing_is_left_to_fill_in(page):
    """Mutation: a line that waits for its content, such as RESULT_TABLE."""
    assert not re.findall(r"\b(?:TODO|FIXME|TBD|XXX)\b|^[A-Z]+(?:_[A-Z]+)+$", page.read_text(), re.M)


def test_the_readers_find_what_is_wrong():
    """Mutations: a pattern that matches nothing would pass every page above."""
    text = (
        "# A b\n[a](docs/nowhere.md) [b](#a-b) [c](#c) [d](https://x.y) [e](README.md#no-such-heading)\n"
        "`docs/nowhere.md` `packtrain/types.py` `packtrain/no*.py` `packtrain/algorithms/NAME.py`\n"
        "`packtrain/Catch-v0` `packtrain.nothing`\n"
        "`packtrain.trees.zap` `packtrain.trees.map` `packtrain.equations.vtrace.vtrace(…)` `Impala.epsilon = 3`\n"
        "`Impala.epsilom` `Policy.act` `docs/broken\nline`\n```text\n`docs/unseen.md` [x](unseen)\n```\n"
    )
    page = ROOT / "README.md"
    assert broken_links(page, text) == ["docs/nowhere.md", "#c", "README.md#no-such-heading"]
    assert missing_paths(text) == ["docs/nowhere.md", "packtrain/no*.py"]
    assert missing_names(text) == ["packtrain.nothing", "packtrain.trees.zap"]
    assert unknown_parameters(text) == ["Impala.epsilom"]


# -- commands


@pytest.fixture
def nothing_runs(monkeypatch, tmp_path):
    """The command line as it is, up to where work would begin."""
    from packtrain import doctor
    from packtrain.bench import measure
    from packtrain.convert import alpacka_gin, marltas_snapshot, steve_to_gin, torchbeast
    from packtrain.runtime import eval_command, train_command
    from packtrain.studies import audit, audit_page, exam, exam_card, explorer, report, results, study, verify

    def train(request):
        if all(path.is_relative_to(knobs.CONFIGS) for path in request.files):
            configuration = config.load(request.files, request.bindings, request.knobs)
            experiment = config.build(configuration)
            if configuration.root == "Study":
                return 0
            if ":" not in experiment.streams.environment.id:  # else a module of the reader's
                experiment.streams.environment.registered_id()
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "FOLDER", ROOT / "docs" / "results")
    monkeypatch.setattr(train_command, "train", train)
    monkeypatch.setattr(study, "train", train)
    monkeypatch.setattr(eval_command, "evaluate", lambda *_, **__: {})
    monkeypatch.setattr(eval_command, "describe_evaluation", lambda *_: "")
    monkeypatch.setattr(report, "write_report", lambda *_: "")
    monkeypatch.setattr(audit, "audit", lambda *_: {"anomalous": False})
    monkeypatch.setattr(audit_page, "describe", lambda *_: "")
    monkeypatch.setattr(explorer, "write_explorer", lambda *_: "")
    recorded = {"total_episodes": 1, "total_steps": 1, "return_mean": 0.0}
    monkeypatch.setattr("packtrain.record.record", lambda *_, **__: recorded)
    for module in (torchbeast, marltas_snapshot, alpacka_gin):
        monkeypatch.setattr(module, "convert", lambda *_: "")
    monkeypatch.setattr(steve_to_gin, "convert", lambda *_: "")
    monkeypatch.setattr(doctor, "run_doctor", lambda *_: 0)
    monkeypatch.setattr(importlib.import_module("packtrain.cli.sweep"), "run_sweep", lambda *_: 0)
    monkeypatch.setattr(exam, "run", lambda *_: [])
    monkeypatch.setattr(exam, "scores", lambda *_: [])
    for name, result in {"summarise": [], "picture": "", "table": ""}.items():
        monkeypatch.setattr(exam_card, name, lambda *_, result=result: result)
    monkeypatch.setattr(importlib.import_module("packtrain.cli.exam"), "_result", lambda *_: {"caption": ""})
    passed = SimpleNamespace(passed=True, line=lambda: "", _asdict=lambda: {"passed": True})
    monkeypatch.setattr(verify, "verify", lambda *_: [passed])
    monkeypatch.setattr(measure, "table", lambda *_: "")
    for path in (ROOT / "packtrain" / "bench").glob("[!_]*.py"):
        monkeypatch.setattr(
            importlib.import_module(f"packtrain.bench.{path.stem}"), "run", lambda *_: {}, raising=False
        )


def try_command(argv: list[str]) -> int:
    """The exit code of a command; a configuration file of the reader's stands for one that changes nothing.

    A specification of the reader's is the one of docs/sweeps.md.
    """
    for word in argv:
        if word.rpartition("=")[2] == "spec.py":
            specification = next(
                text for _, text in blocks((ROOT / "docs/sweeps.md").read_text()) if "experiments_list" in text
            )
            Path("spec.py").write_text(specification)
        if word.endswith(".gin") and not Path(word).is_absolute():
            try:
                knobs.find_config(word)
            except ConfigError:
                Path(word).parent.mkdir(parents=True, exist_ok=True)
                Path(word).write_text("include 'impala/catch.gin'\n")
    try:
        return cli.main(argv)
    except SystemExit as leaving:  # --help
        return int(leaving.code or 0)


CALLS = [
    pytest.param(argv, id=f"{page_id(page)}: {' '.join(argv)}")
    for page in PAGES
    for line in command_lines(page.read_text())
    for argv in packtrain_calls(line)
]


OPEN = re.compile(r"[…{}*]|\.\.\.|\b(CONFIG|NAME|FILE|SPEC|TASK|METHOD|CODE)\b")  # what a reader fills in
ROWS = [
    pytest.param(argv, id=f"row: {' '.join(argv)}")
    for code in dict.fromkeys(
        code
        for line in (ROOT / "docs" / "coming-from.md").read_text().splitlines()
        if line.startswith("|")
        for code in codes(line)
        if re.match(r"packtrain (train|eval|convert|explore|sweep|bench|list) \S", code) and not OPEN.search(code)
    )
    for argv in packtrain_calls(code)
]


@pytest.mark.parametrize("argv", ROWS)
def test_commands_in_rows_of_coming_from_are_understood(nothing_runs, capsys, argv):
    """The commands that stand beside those of other systems. Mutation: a flag or a configuration renamed."""
    code = try_command(argv)
    assert code == 0, capsys.readouterr().err


@pytest.mark.parametrize("argv", CALLS)
def test_commands_are_understood(nothing_runs, capsys, argv):
    code = try_command(argv)
    assert code == 0, capsys.readouterr().err


def test_commands_are_found():
    assert len(CALLS) >= 5
    text = (
        "```console\n$ A=1 packtrain list | head   # first\npacktrain: no command\n"
        "$ .venv/bin/packtrain eval runs/a \\\n   --json > out && python -m packtrain.runner --config 'a = 1'\n"
        "$ packtrain audit x  # not yet\n```\n"
        "```sh\npython3 -m packtrain doctor; make test\n```\n```text\npacktrain nonsense\n```\n"
    )
    found = [argv for line in command_lines(text) for argv in packtrain_calls(line)]
    assert found == [["list"], ["eval", "runs/a", "--json"], ["train", "--config", "a = 1"], ["doctor"]]


@pytest.mark.parametrize(
    "line",
    [
        "packtrain trian impala/catch",
        "packtrain train impala/cach",
        "packtrain train impala/catch --num_actor 3",
        "packtrain train impala/catch --num_actors many",
        "packtrain train impala/catch --config 'Impala.entropy = 1'",
        "packtrain train impala/gym --env CratPole-v1",
        "packtrain train impala/catch --runtime clusters",
        "packtrain train mine.gin --num_actor 3",
        "packtrain train steve/toy --noise 2",
        "packtrain eval",
        "packtrain eval runs/a --best",
        "packtrain bench nothing",
        "packtrain sweep impala/catch --learning_rate 0.001,x",
        "packtrain sweep spec.py --n_rollout 3",
        "packtrain list --every",
        "packtrain convert model.tar",
        "packtrain convert model.tar impala/atri --output_dir runs/a",
        "packtrain convert steve0.json --out a.gin --output_dir b",
        "packtrain convert steve0.json --device cuda",
    ],
)
def test_wrong_commands_are_not(nothing_runs, line):
    """Mutation: stubs that swallow what the command line would refuse."""
    ((*argv,),) = packtrain_calls(line)
    assert try_command(argv) == 2


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_targets_exist(page):
    text = page.read_text()
    said = [code for code in inline_code(text) if code.startswith("make ")] + command_lines(text)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert {match[1] for line in said if (match := re.match(r"make ([\w-]+)", line))} <= targets


def test_contributing_lists_every_make_target():
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
    assert [codes(row[0])[0] for row in table(section("CONTRIBUTING.md", "Set-up"))[1:]] == [f"make {t}" for t in phony]


# -- coming from TorchBeast


def flag_rows() -> list[list[str]]:
    return [row for row in table(section("docs/coming-from.md", "Flags")) if row[0].startswith("`--")]


def test_every_torchbeast_flag_has_its_row():
    assert [codes(row[0]) for row in flag_rows()] == [[f"--{flag}"] for flag in TORCHBEAST_FLAGS]


def test_rows_say_truly_which_flags_exist_and_with_which_default():
    """Mutations: a knob renamed, removed or given another default in configs/impala/base.gin."""
    known = knobs.read_knobs(BASE)
    for row in flag_rows():
        flag, ours, default = codes(row[0])[0].removeprefix("--"), row[3], row[4]
        if flag in known:
            assert ours == "knob" and ast.literal_eval(codes(default)[0]) == known[flag].default, flag
        else:
            assert ours == ("program flag" if flag in knobs.PROGRAM_FLAGS else "–"), flag


def test_the_base_config_keeps_torchbeasts_defaults():
    """As the page says. `env` needs Atari there; `num_threads` means something else here."""
    known = knobs.read_knobs(BASE)
    shared = [flag for flag in TORCHBEAST_FLAGS if flag in known and flag not in ("env", "num_threads")]
    assert {flag: known[flag].default for flag in shared} == {flag: TORCHBEAST_FLAGS[flag] for flag in shared}


def test_every_other_knob_and_program_flag_is_listed():
    _, _, rest = section("docs/coming-from.md", "Flags").partition("Knobs that TorchBeast does not have")
    ours, _, program = rest.partition("Program flags that TorchBeast does not have")
    flags = {code.removeprefix("--") for code in codes(ours)}
    assert flags == set(knobs.read_knobs(BASE)) - set(TORCHBEAST_FLAGS)
    named = {code.removeprefix("--").replace("-", "_") for code in codes(program)}
    elsewhere = {"help", "json", "num_episodes"}  # of other commands, and told there
    assert named == set(knobs.PROGRAM_FLAGS) - set(TORCHBEAST_FLAGS) - elsewhere


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A tiny run, trained and evaluated, where the program chose the folder's name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("docs"))
        patch.setenv("A_SECRET", "never-to-be-written")
        sizes = ["--num_actors", "4", "--batch_size", "4", "--unroll_length", "5", "--hidden_size", "8"]
        often = ["--total_steps", "300", "--log_every", "100", "--eval_every", "300", "--eval_episodes", "2"]
        assert cli.main(["train", "impala/catch", "--runtime", "serial", *sizes, *often]) == 0
        assert cli.main(["eval", "runs/latest", "--num_episodes", "2"]) == 0
        return Path("runs/latest").resolve()


def test_the_files_named_are_written(run_folder):
    """Mutation: any part of a checkpoint under another name."""
    step = max(int(path.name) for path in (run_folder / "checkpoints").iterdir() if path.name.isdecimal())
    said = [code for row in table(section("docs/coming-from.md", "Files and outputs"))[1:] for code in codes(row[1])]
    files = [code for code in said if re.match(r"checkpoints/|[\w.]+\.(gin|jsonl|txt|json)$", code)]
    assert {"config.gin", "metrics.jsonl", "log.txt", "eval.json", "checkpoints/STEP/"} <= set(files)
    assert not [name for name in files if not (run_folder / name.replace("STEP", str(step))).exists()]


def test_the_environment_is_never_written(run_folder):
    """Mutation: os.environ in any file of a run."""
    files = [path for path in run_folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if b"never-to-be-written" in path.read_bytes()]


def test_the_metrics_named_are_written(run_folder):
    """Mutation: a metric renamed."""
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    text = section("docs/coming-from.md", "Columns of `logs.csv`")
    names = {code for row in table(text)[1:] for code in codes(row[1])}
    assert {"step", "wall_s", "episode_return", "policy_lag_max"} <= names
    assert names <= set.union(*[set(row) for row in rows if row["kind"] == "train"])
    evaluated = set(codes(text.partition("hold greedy evaluations")[2]))
    assert evaluated and evaluated <= set.union(*[set(row) for row in rows if row["kind"] == "eval"])


# -- glossary, versions


def test_the_glossary_has_each_word_once():
    words = re.findall(r"^- \*\*([^*]+)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.M)
    assert len(words) == len(set(words))
    assert not set(GLOSSARY) - {word.partition(",")[0] for word in words}


def test_one_version_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert packtrain.__version__ == version
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == version
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1] == version


def test_the_changelog_has_only_its_four_sections():
    titles = set(re.findall(r"^### (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M))
    assert titles <= {"Breaking", "Added", "Fixed", "Numbers"}
