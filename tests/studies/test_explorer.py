"""The search explorer's page and what it reads: both versions of traces, hostile ones, and the command."""

import base64
import hashlib
import json
import re
import subprocess
import sys

import pytest

from packtrain.cli import main
from packtrain.errors import RunFolderError
from packtrain.studies.explorer import SCRIPTS, Source, explorer_page, write_explorer
from packtrain.studies.html_page import html_page
from packtrain.studies.trace_files import NotATrace, read_trace, read_traces

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
EDGES = {"from": [0, 0], "to": [1, 0], "action": [0, 1], "visits": [3, 1]}
NODES = {"state": [0, 1], "value": [0.5, None], "terminal": [False, True]}
SEARCH = {"planner": "Test", "kind": "graph", "left_out": 0, "path": [0], "nodes": NODES, "edges": EDGES}
STEP = {"action": 0, "reward": 1.0, "ended": True, "to": 1, "extras": {"value": 0.5}, "search": SEARCH}
TRACE = {
    **{"version": 2, "environment": "Line", "epoch": 3, "column": 0, "cut": False, "source": "train"},
    **{"checkpoint": None, "actions": ["back", "on"], "start": 0},
    "states": {"0": {"state": ["<i8", [], base64.b64encode((5).to_bytes(8, "little")).decode()]}, "1": {}},
    "steps": [STEP],
}


def changed(**values):
    return {**TRACE, **values}


def with_step(**values):
    return changed(steps=[{**STEP, **values}])


def with_search(**values):
    return with_step(search={**SEARCH, **values})


def make(run, name="ep000003_0000.json", content=TRACE):
    (run / "traces").mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (run / "traces" / name).write_text(text)
    return run


def data_of(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)


def test_a_trace_is_read_as_it_was_written(tmp_path):
    trace = read_trace(make(tmp_path), "ep000003_0000.json")
    assert trace.environment == "Line" and trace.actions == ["back", "on"] and trace.start == 0
    assert trace.states == {"0": {"values": "state []: 5"}, "1": {"values": ""}}
    assert trace.steps == [STEP]


def test_version_1_is_read_as_a_graph_of_its_model_steps(tmp_path):
    """Mutations: the root in another place; a step counted once that was made twice; rollouts as steps of the root."""

    def link(source, to, action, terminated=False):
        return {"from": source, "to": to, "action": action, "reward": 0.5, "terminated": terminated}

    passes = [[link(2, 1, 0), link(2, 3, 1)], [link(2, 3, 1), link(3, 2, 0), link(-1, 1, 0)]]
    step = {"action": 1, "reward": 0.0, "ended": True, "to": 3, "extras": {}, "passes": passes}
    old = {**changed(version=1, start=2, steps=[step]), "states": {str(n): {} for n in range(4)}}
    for name in ("source", "checkpoint", "actions"):
        del old[name]
    trace = read_trace(make(tmp_path, content=old), "ep000003_0000.json")
    assert trace.source == "train" and trace.actions == []
    search = trace.steps[0]["search"]
    assert search["nodes"]["state"] == [2, 1, 3] and "1 of rollouts" in search["planner"]
    links = zip(*(search["edges"][name] for name in ("from", "to", "action", "visits")), strict=True)
    assert list(links) == [(0, 1, 0, 1), (0, 2, 1, 2), (2, 0, 0, 1)]


WRONG = {
    "text": ("hello", "it is not JSON"),
    "deep": ("[" * 100_000 + "]" * 100_000, "it is not JSON"),
    "a long number": ('{"version": ' + "9" * 5_000 + "}", "it is not JSON"),
    "another version": (changed(version=3), "version 1 or 2"),
    "a list": ([], "version 1 or 2"),
    "no steps": (changed(steps=None), "steps is not a list"),
    "no states": (changed(states=[]), "states is not an object"),
    "a step": (changed(steps=[3]), "decision 0: step is not an object"),
    "NaN as a node": (json.dumps(with_step(to=float("nan"))), "to is not a whole number"),
    "a name that is no text": (changed(environment=[1]), "a name is not text"),
    "an edge to nowhere": (with_search(edges={**EDGES, "to": [1, 9]}), "an edge leads to no node"),
    "an edge from nowhere": (with_search(edges={**EDGES, "from": [-1, 0]}), "an edge leads to no node"),
    "columns": (with_search(edges={**EDGES, "visits": [1]}), "the columns of edges differ"),
    "no actions": (with_search(edges={"from": [0], "to": [0]}), "no column 'action'"),
    "a path": (with_search(path=[7]), "the path has no edge"),
    "a kind": (with_search(kind="<b>"), "none of the kinds"),
    "no nodes": (with_search(nodes={"state": []}), "no nodes"),
    "text as a value": (with_search(nodes={**NODES, "value": ["<b>", 1]}), "a value is not a number"),
    "an extra": (with_step(extras={"a": {"b": 1}}), "a value is not a number"),
    "sequences": (with_search(kind="sequences", sequences={"actions": [[[1]]], "plan": [[1]]}), "iteration"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, name):
    """Where it stands alone it ends the command; beside a good one it is left out, which the page says."""
    content, message = WRONG[name]
    make(tmp_path, "bad.json", content)
    with pytest.raises(NotATrace, match=message):
        read_trace(tmp_path, "bad.json")
    with pytest.raises(RunFolderError, match="has no readable trace: traces/bad.json is left out"):
        read_traces(tmp_path)
    make(tmp_path)
    assert "traces/bad.json is left out" in explorer_page([Source(tmp_path)])


def test_numbers_that_json_lacks_become_nothing(tmp_path):
    text = json.dumps(with_step(reward=7.25, extras={"value": 7.25, "list": [7.25, 1]})).replace("7.25", "1e400")
    trace = read_trace(make(tmp_path, content=text.replace('"visits": [3', '"visits": [NaN')), "ep000003_0000.json")
    step = trace.steps[0]
    assert step["reward"] is None and step["extras"] == {"value": None, "list": [None, 1]}
    assert step["search"]["edges"]["visits"] == [None, 1]
    assert data_of(explorer_page([Source(tmp_path)]))["episodes"][0]["steps"][0]["reward"] is None


def test_nothing_of_a_trace_can_end_its_element(tmp_path):
    """Mutation: JSON without the escapes of < and >."""
    bad = {**SEARCH, "planner": HOSTILE, "nodes": {**NODES, HOSTILE: [1, 2]}}
    content = changed(
        environment=HOSTILE,
        actions=[HOSTILE],
        texts={"0": HOSTILE, "1": HOSTILE},
        pictures={"0": HOSTILE, "1": base64.b64encode(b"<svg onload=alert(1)>" * 9).decode()},
        steps=[{**STEP, "extras": {HOSTILE: 1.0}, "search": bad}],
    )
    page = explorer_page([Source(make(tmp_path / "<b>run</b>", content=content))])
    assert "<script>alert" not in page and "<img src=x" not in page and "<b>run" not in page
    found = data_of(page)["episodes"][0]
    assert found["actions"] == [HOSTILE[:80]] and found["states"]["0"]["text"] == HOSTILE
    assert all("picture" not in state for state in found["states"].values()), "only small PNG files are pictures"


def test_long_lines_are_cut(tmp_path):
    content = changed(texts={"0": "x" * 2_000_000}, actions=["y" * 1_000_000], steps=[STEP])
    content["steps"] = [{**STEP, "extras": {"long": [0.5] * 500_000}}]
    page = explorer_page([Source(make(tmp_path, content=content))])
    assert len(page) < 400_000


def test_links_and_folders_are_not_followed(tmp_path):
    """A trace that is a link to a file elsewhere, and a folder of traces that is one. Mutation: plain open."""
    secret = make(tmp_path / "other")
    run = make(tmp_path / "run")
    (run / "traces" / "link.json").symlink_to(secret / "traces" / "ep000003_0000.json")
    (run / "traces" / "folder.json").mkdir()
    found, lines = read_traces(run)
    assert len(found) == 1 and len(lines) == 2 and "symbolic link" in "".join(lines)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "traces").symlink_to(secret / "traces")
    with pytest.raises(RunFolderError, match="symbolic link"):
        read_traces(linked)


def test_the_policy_allows_the_pages_own_scripts_alone(tmp_path):
    page = explorer_page([Source(make(tmp_path))])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert len(scripts) == len(SCRIPTS)
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert re.findall(r"'sha256-([^']*)'", policy) == hashes
    assert "default-src 'none'" in policy and "connect-src" not in policy and "unsafe-eval" not in policy
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", "".join(scripts))
    assert "script-src" not in html_page("t", "b") and html_page("t", "b", script="1").count("sha256-") == 1


def test_the_licence_of_the_library_is_in_the_page(tmp_path):
    page = explorer_page([Source(make(tmp_path))])
    assert "Permission to use, copy, modify" in page and "Mike Bostock" in page


# -- the command


def explore(*arguments):
    return main(["explore", *map(str, arguments)])


def test_the_command_writes_a_page(tmp_path, capsys):
    run = make(tmp_path / "run")
    assert explore(run) == 0
    assert capsys.readouterr().out.strip() == str(run / "explorer.html")
    assert explore(run, "--out", tmp_path / "page.html") == 0 and (tmp_path / "page.html").is_file()
    first = (tmp_path / "page.html").read_bytes()
    assert first == (run / "explorer.html").read_bytes(), "the same traces give the same page"


def test_two_checkpoints_or_two_runs_stand_side_by_side(tmp_path):
    run = tmp_path / "run"
    for step in (100, 2000):
        make(run, f"eval{step:010}_0000.json", changed(source="eval", checkpoint=step))
    page = data_of(explorer_page([Source(run, 100), Source(run, 2000)]))
    assert page["groups"] == ["run at step 100", "run at step 2,000"]
    assert [(one["group"], one["title"].split(" · ")[0]) for one in page["episodes"]] == [
        (0, "run at step 100: evaluation at step 100"),
        (1, "run at step 2,000: evaluation at step 2,000"),
    ]
    other = make(tmp_path / "other")
    assert explore(run, "--against", other, "--out", tmp_path) == 0
    assert data_of((tmp_path / "explorer.html").read_text())["groups"] == ["run", "other"]
    assert explore(run, "--checkpoint", 100, "--checkpoint", 2000, "--out", tmp_path) == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["RUN"], "has no traces; `packtrain eval RUN --trace 5` records five"),
        (["missing"], "missing is not a run folder: it does not exist"),
        (["RUN", "--checkpoint", "7"], "has no trace of checkpoint 7; `packtrain eval RUN --checkpoint 7 --trace 1`"),
        (["RUN", "--checkpoint", "-1"], "--checkpoint must not be negative"),
        (["RUN", *["--checkpoint", "1"] * 3], "at most two --checkpoint can be given, and there are 3"),
        (["RUN", "--out", ""], "one of them is empty"),
    ],
)
def test_errors_are_one_line(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "RUN").mkdir()
    assert explore(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_page_that_cannot_be_written_is_said(tmp_path, capsys):
    run = make(tmp_path / "run")
    (tmp_path / "file").write_text("")
    assert explore(run, "--out", tmp_path / "file" / "page.html") == 2
    assert "page.html cannot be written" in capsys.readouterr().err


def test_the_command_imports_no_torch(tmp_path):
    run = make(tmp_path / "run")
    code = (
        "import sys; from packtrain.cli import main; assert main(['explore', sys.argv[1]]) == 0;"
        "assert not {'torch', 'gin'} & set(sys.modules), 'slow imports'"
    )
    subprocess.run([sys.executable, "-c", code, str(run)], check=True, timeout=120)


def test_a_page_is_bounded(tmp_path, monkeypatch):
    """Episodes beyond the limit are left out, and counted. Mutation: the limit for each run."""
    monkeypatch.setattr("packtrain.studies.explorer.MOST_PAGE", 2_000)
    for epoch in range(8):
        make(tmp_path, f"ep{epoch:06}_0000.json")
    page = explorer_page([Source(tmp_path)])
    count = len(data_of(page)["episodes"])
    assert 1 <= count < 8 and f"{8 - count} episodes of" in page
    write_explorer([Source(tmp_path)])
