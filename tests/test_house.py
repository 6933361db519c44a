"""The house keeps its shape: imports point one way, no drawers, nothing that could run code from a file."""

import ast
import re
from pathlib import Path

import pytest

import packtrain

PACKAGE = Path(packtrain.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
# A room may import from its own floor and the floors below it.
FLOORS = [
    {"types", "trees", "arrays", "equations", "errors", "knobs", "cores", "files", "interfaces"},
    {"config", "metrics"},
    {"networks", "devices", "envs", "memory", "planning"},
    {"acting"},
    {"algorithms"},
    {"runtime"},
    {"studies", "bench", "doctor"},
    {"cli", "runner", "__main__"},
]
RUNTIMES = [
    f"runtime/{name}.py"
    for name in ("serial", "local", "training", "acting", "learning", "counters", "messages", "metrics_log")
]
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
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        assert not re.search(r"/(home|root|work|tmp)/|https?://", text), path


@pytest.mark.parametrize("name", ["acting/actor.py", "runtime/loops", *RUNTIMES])
def test_what_runs_experiments_knows_no_concrete_memory_learner_or_policy(name):
    """Only the interfaces. Mutation: an import of a memory, an algorithm, a network or a planner in any of these."""
    path = PACKAGE / name
    for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
        assert not imported_rooms(file) & {"memory", "algorithms", "networks", "planning"}, file
