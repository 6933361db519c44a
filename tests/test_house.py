"""The house keeps its shape: imports point one way, no drawers, nothing that could run code from a file."""

import ast
import io
import itertools
import re
import tokenize
from pathlib import Path

import pytest

import packtrain

PACKAGE = Path(packtrain.__file__).parent
ROOT = Path(__file__).parent.parent
FILES = sorted(PACKAGE.rglob("*.py"))
# A room may import from its own floor and the floors below it.
FLOORS = [
    {
        "types",
        "trees",
        "arrays",
        "equations",
        "errors",
        "check",
        "value_types",
        "knobs",
        "config_parts",
        "old_names",
        "run_identity",
        "cpu_count",
        "files",
        "hashing",
        "interfaces",
        "own_runs",
    },
    {"config", "foreign_configs", "unused_bindings", "metrics"},
    {"networks", "accelerate", "envs", "memory", "planning"},
    {"acting"},
    {"algorithms"},
    {"runtime"},
    {"studies", "bench", "convert", "doctor", "prediction", "export", "record"},
    {"api"},
    {"alpacka_runner", "alpacka_trainers"},
    {"configurables"},
    {"cli", "runner", "__main__"},
]
# Formats that all memories share, and messages between data-parallel learners.
NOT_A_KIND = {"memory.chunk", "memory.segments", "algorithms.data_parallel"}
HEIGHT = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path, top_level_only: bool = False) -> set[str]:
    rooms = set()
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "packtrain":
            parts = node.module.split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("packtrain.")}
    return rooms - {"__version__"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    room = room_of(path)
    if room in ("__init__", "testing"):
        return
    for other in imported_rooms(path):
        assert other != "testing", f"{path} imports packtrain.testing: tests and configs only"
        # metrics records episodes and is used from the runtime; it may look at what a stream hands out
        if (room, other) == ("metrics", "envs"):
            continue
        assert HEIGHT[other] <= HEIGHT[room], f"{path} ({room}) imports {other}, which stands above it"


def test_equations_stand_on_torch_alone():
    for path in (PACKAGE / "equations").glob("*.py"):
        assert imported_rooms(path) <= {"equations"}, path


def test_only_one_module_imports_gin():
    users = [p for p in FILES if re.search(r"^\s*(import gin|from gin)\b", p.read_text(), re.M)]
    assert users == [PACKAGE / "config.py"]


def test_no_drawers():
    names = {"utils", "common", "helpers", "misc"}
    assert not [p for p in PACKAGE.rglob("*") if p.stem in names]


def test_nothing_reads_code_from_files():
    """X2. Mutation: any pickle, eval or torch.load without weights_only=True in the package is found."""
    forbidden = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    hits = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                hits += [(path, a.name) for a in node.names if a.name.split(".")[0] in forbidden]
            elif isinstance(node, ast.ImportFrom):
                hits += [(path, node.module)] * ((node.module or "").split(".")[0] in forbidden)
            elif isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                bad = name in ("eval", "exec", "torch.load", "yaml.load", "compile", "os.system")
                if name == "torch.load":  # old checkpoints are read, and nothing in them is run
                    bad = not any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords)
                bad |= any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords)
                bad |= any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords)
                hits += [(path, name)] * bad
    assert not hits


def test_no_absolute_paths_or_hosts():
    for path in FILES:
        # a name, not an address; and this machine itself
        text = path.read_text().replace("http://www.w3.org/2000/svg", "").replace("http://{HOST}:", "")
        assert not re.search(r"/(home|root|work|tmp)/|https?://", text), path


@pytest.mark.parametrize("path", [PACKAGE / "acting/actor.py", *sorted((PACKAGE / "runtime").rglob("*.py"))], ids=str)
def test_what_runs_experiments_knows_no_concrete_memory_learner_or_policy(path):
    """Only the interfaces. Mutation: an import of a memory, an algorithm, a network or a planner in any of these."""
    kinds = ("memory", "algorithms", "networks", "planning", "acting.")
    own = {"acting.actor", "acting.actor_state"} | NOT_A_KIND
    modules = [node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    names = [module.removeprefix("packtrain.") for module in modules if module and module.startswith("packtrain.")]
    assert not [name for name in names if name.startswith(kinds) and name not in own]


SHORT_FUNCTIONS = ("algorithms", "memory")  # folders
MOST_LINES, MOST_ARGUMENTS = 60, 8


@pytest.mark.parametrize("folder", ("runtime", *SHORT_FUNCTIONS))
def test_functions_are_short(folder):
    """At most 60 lines and 8 arguments, `self` not counted."""
    long = []
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = len([one for one in given if one.arg not in ("self", "cls")])
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_LINES or count > MOST_ARGUMENTS:
                    long.append(f"{path.name}: {node.name}: {lines} lines, {count} arguments")
    assert not long


@pytest.mark.parametrize("folder", SHORT_FUNCTIONS)
def test_files_are_short(folder):
    assert not [path for path in (PACKAGE / folder).rglob("*.py") if len(path.read_text().splitlines()) > 450]


PROSE = ("packtrain", "tests", "benchmarks")  # folders whose docstrings, comments and names of tests are checked
# Words that made readers parse a sentence twice: missing subjects, programs described as persons, private words.
UNCLEAR = re.compile(
    r"\b(nobody|somebody|whoever|whomever|whom|anew|wheelwork|seats?|judges?|judged|hears?|heard|asks|knows|wants|"
    r"wishes|wished|doubts?|doubted|tapes?|taped|untaped|(is|are|was|were|been|be) told|gives? way)\b",
    re.IGNORECASE,
)
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|'[^' ]*'")  # names of code


def sentences(path: Path) -> list[tuple[int, str]]:
    """Return the docstrings and comments of a Python file by line, and the texts of a package's messages."""
    text = path.read_text(encoding="utf-8")
    tree, found = ast.parse(text), []
    for node in ast.walk(tree):
        is_name = isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if is_name:
            found.append((node.lineno, node.name.replace("_", " ")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (said := ast.get_docstring(node)):
            found.append((getattr(node, "lineno", 1), said))
        elif path.is_relative_to(PACKAGE) and isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [(node.lineno, node.value)] if " " in node.value.strip() else []
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return found + [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def unclear(path: Path, lines: list[tuple[int, str]]) -> list[str]:
    found = []
    for number, line in lines:
        hits = {match[0] for match in UNCLEAR.finditer(QUOTED.sub("", line))}
        found += [f"{path.relative_to(ROOT)}:{number}: {', '.join(sorted(hits))}"] if hits else []
    return found


def test_prose_has_no_personified_code_and_no_private_words():
    """Mutation: any of the words in a docstring, comment, message, test name, knob comment or page of the docs."""
    found = []
    for folder in PROSE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != Path(__file__):
                found += unclear(path, sentences(path))
    for path in sorted(PACKAGE.rglob("*.gin")):
        found += unclear(path, [(n, line.partition("#")[2]) for n, line in enumerate(path.read_text().splitlines(), 1)])
    for path in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        found += unclear(path, list(enumerate(path.read_text().splitlines(), 1)))
    for number, line in enumerate((ROOT / "CHANGELOG.md").read_text().splitlines(), 1):
        if line.startswith("## 0.1.0"):
            break
        found += unclear(ROOT / "CHANGELOG.md", [(number, line)])
    assert not found, "\n".join(found)


ENDING = re.compile(r"(ations?|isons?|ers?|ed|ing|e?s|e)$")


def test_no_two_modules_of_a_folder_differ_only_by_an_ending():
    """Such as `compilation` and `compilers`, or `saver` and `saved_state`. Mutation: `runtime/evaluations.py`."""
    twins = []
    for folder in {path.parent for path in FILES}:
        names = [path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")]
        for name, other in itertools.permutations(names, 2):
            word = other.split("_")[0] if other.split("_")[0].endswith("ed") else other
            twins += [(folder.name, name, other)] if ENDING.sub("", name) == ENDING.sub("", word) else []
    assert not twins
