"""The search explorer in a real browser. Skipped where there is no Chromium; `make test-browser` runs it."""

import base64
import json
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import chromium

from packtrain.planning.trace_states import small_png
from packtrain.studies.explorer import Source, write_explorer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium.find() is None, reason="no Chromium is installed: apt-get install chromium"),
]
AXE = pathlib.Path(os.environ.get("PACKTRAIN_AXE", "")) / "axe.min.js"
PANE = "packtrainExplorer.panes[0]"
HOSTILE = "<script>document.title='run'</script><img src=x onerror=alert(1)>\u202e"


def picture():
    import numpy as np

    return base64.b64encode(small_png(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))).decode()


def tree(nodes, fan=4):
    """A search whose node n has the children fan · n + 1 and so on; visits fall with depth."""
    children = range(1, nodes)
    parents = [(child - 1) // fan for child in children]
    edges = {"from": parents, "to": list(children), "action": [(child - 1) % fan for child in children]}
    edges |= {"visits": [nodes // child for child in children], "value": [1 / child for child in children]}
    visits = [nodes] + edges["visits"]
    node_columns = {"state": [n % 3 for n in range(nodes)], "visits": visits}
    return {"planner": "Test", "kind": "tree", "left_out": 0, "path": [0], "nodes": node_columns, "edges": edges}


def liar(verified):
    """A graph of three states in which action 1 of the root falsely leads back to the root; 2 is where it leads."""
    edges = {"from": [0, 0, 1], "to": [0, 1, 0], "action": [1, 0, 0], "disagreement": [0.9, 0.1, 0.1]}
    edges |= {"truth": [2, 1, 0], "verified": [verified, False, False]}
    nodes = {"state": [0, 1], "value": [0.0, 0.5], "terminal": [False, False]}
    return {"planner": "BestFirstSearch", "kind": "graph", "left_out": 0, "path": [1], "nodes": nodes, "edges": edges}


def step(search, to=1, **others):
    values = {"action": 1, "reward": 0.5, "ended": False, "to": to, "extras": {"value": 0.25, "verified": False}}
    return {**values, "search": search, **others}


def write(run, name, steps, environment="Test", **others):
    (run / "traces").mkdir(parents=True, exist_ok=True)
    states = {str(n): {"state": ["<i8", [1], base64.b64encode(bytes(8)).decode()]} for n in range(3)}
    content = {"version": 2, "environment": environment, "epoch": 1, "column": 0, "cut": False, "source": "train"}
    content |= {"checkpoint": None, "actions": ["left", "right", "up", "down"], "start": 0, "states": states}
    content |= {"texts": {"0": "alpha", "1": "beta", "2": "gamma"}, "pictures": {"0": picture()}, "steps": steps}
    (run / "traces" / name).write_text(json.dumps({**content, **others}))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two episodes: a tree of 13 nodes in three decisions, and a lie that is found out."""
    run = tmp_path_factory.mktemp("runs") / "run"
    write(run, "ep000001.json", [step(tree(13)), step(tree(9)), step(None, ended=True)][:2])
    lie = step(liar(False), to=2, predicted={"to": 0, "reward": 0.5, "terminated": False})
    lie["extras"] = {"value": 0.5, "verified": True}
    write(run, "ep000002.json", [lie, step(liar(True), ended=True)])
    return write_explorer([Source(run)])


@pytest.fixture
def browser(page):
    with chromium.Chromium(1400, 900) as browser:
        browser.open(page)
        browser.until("window.packtrainExplorer && packtrainExplorer.panes[0].view.frames > 0")
        yield browser


def status(browser):
    return browser.run("document.querySelector('.status').textContent")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_opens_without_errors_and_requests_and_fits(page, width, dark):
    with chromium.Chromium(width, 900, dark) as browser:
        browser.open(page)
        browser.until(f"{PANE}.view.frames > 0")
        assert browser.errors() == [] and browser.requests() == []
        assert browser.run("document.documentElement.scrollWidth") == width, "nothing sticks out at the side"
        assert "13 of 13 nodes shown" in status(browser)
        browser.run("packtrainExplorer.compare(true)")
        assert browser.errors() == []


def test_the_keyboard_walks_expands_and_steps(browser):
    """Mutations: a key that is not handled; a slider that the decision does not follow."""
    browser.run(f"{PANE}.canvas.focus()")
    assert browser.run("document.activeElement.matches(':focus-visible')")
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.key("ArrowRight")
    assert "after left, depth 1" in status(browser), "the plan comes first"
    browser.key("ArrowDown")
    assert "after right, depth 1" in status(browser)
    browser.key("Enter")
    assert "9 of 13 nodes shown" in status(browser) and "4 nodes hidden" in status(browser)
    browser.key("Enter")
    assert "13 of 13 nodes shown" in status(browser)
    browser.key("ArrowLeft")
    assert "root, depth 0" in status(browser)
    scale = browser.run(f"{PANE}.view.scale")
    browser.key("+")
    assert browser.run(f"{PANE}.view.scale") > scale
    browser.key("n")
    assert browser.run("document.querySelector('.where').textContent") == "decision 2 of 2"
    browser.run("document.querySelector('input[type=range]').focus()")
    browser.key("ArrowLeft")
    assert browser.run("document.querySelector('.where').textContent") == "decision 1 of 2"
    browser.key("/")
    assert browser.run("document.activeElement.id") == "find"


def test_the_search_finds_states_and_actions(browser):
    def find(text):
        browser.run(
            f"(() => {{const f = document.querySelector('#find'); f.value = {json.dumps(text)};"
            " f.dispatchEvent(new Event('input'))})()"
        )
        return browser.run("document.querySelector('#found').textContent")

    assert find("gamma") == "4 found" and find("right") == "3 found" and find("#0") == "5 found"
    assert find("nothing") == "0 found" and find("") == ""
    find("gamma")
    browser.run("document.querySelector('#find').focus()")
    browser.key("Enter")
    assert browser.run("document.querySelector('#found').textContent") == "1 of 4"
    assert browser.run(f"{PANE}.search.state({PANE}.view.selected)") == 2


def test_a_false_loop_and_its_verification_are_shown(browser):
    """Mutations: a loop that agrees with the truth counted as false; the mark of a verified edge lost."""
    browser.run(f"{PANE}.open(1, 0)")
    assert "1 wrong predictions, 1 of them false loops" in status(browser)
    shown = browser.run("document.querySelector('.side').innerText")
    assert "false loop: the model said that nothing changes" in shown and "to verify" in shown
    assert "false loop; really #2" in shown
    assert browser.run(f"{PANE}.view.loops.get(0).length") == 1
    browser.run(f"{PANE}.decide(1, true)")
    assert "✓" in browser.run("document.querySelector('.side tbody').innerText")


def test_a_drag_pans_and_the_wheel_zooms(browser):
    x, y = browser.run(
        f"(() => {{const r = {PANE}.canvas.getBoundingClientRect(); return [r.right - 40, r.bottom - 30]}})()"
    )
    before = browser.run(f"[{PANE}.view.x, {PANE}.view.scale]")
    browser.mouse("mouseMoved", x, y)
    browser.mouse("mousePressed", x, y)
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=x - 50, y=y, button="left", buttons=1)
    browser.mouse("mouseReleased", x - 50, y)
    assert browser.run(f"{PANE}.view.x") == pytest.approx(before[0] - 50)
    browser.send("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-60)
    browser.until(f"{PANE}.view.scale > {before[1]}")


def test_two_decisions_stand_side_by_side_and_step_together(browser):
    browser.run("document.querySelector('#compare').click()")
    assert browser.run("packtrainExplorer.panes.length") == 2
    browser.run("packtrainExplorer.panes[1].open(0, 0); document.querySelector('#together').checked = true")
    browser.run(f"{PANE}.decide(1, true)")
    assert browser.run("packtrainExplorer.panes.map((one) => one.index)") == [1, 1]
    browser.run("document.querySelector('#compare').click()")
    assert browser.run("document.querySelectorAll('.pane').length") == 1 and browser.errors() == []


def test_two_runs_stand_side_by_side(tmp_path):
    for name in ("one", "two"):
        write(tmp_path / name, "ep000001.json", [step(tree(5 if name == "one" else 7), ended=True)])
    page = write_explorer([Source(tmp_path / "one"), Source(tmp_path / "two")])
    with chromium.Chromium() as browser:
        browser.open(page)
        browser.until("packtrainExplorer.panes.length === 2")
        assert browser.run("packtrainExplorer.panes.map((one) => one.search.size)") == [5, 7]


def test_ten_thousand_nodes_load_in_two_seconds_and_pan_smoothly(tmp_path):
    """Load: until everything is expanded and drawn. Pan: frames in which each move has been drawn, all nodes in view.

    The limits are those of a quiet machine with a margin of 2; the figures are printed.
    """
    run = tmp_path / "run"
    write(run, "ep000001.json", [step(tree(10_000), ended=True)])
    page = write_explorer([Source(run)])
    with chromium.Chromium(1400, 900) as browser:
        browser.open(page)
        browser.until(f"{PANE}.view.frames > 0")
        opened = browser.run(
            "(() => {const n = performance.getEntriesByType('navigation')[0]; return n.loadEventEnd - n.startTime})()"
        )
        expand = browser.run(
            f"new Promise((done) => {{const v = {PANE}.view, t = performance.now(); v.openAll(true);"
            " requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - t)))})"
        )
        assert browser.run(f"{PANE}.view.shown.length") == 10_000
        in_view = browser.run(f"{PANE}.view.shown.filter((one) => {PANE}.view.inView(one)).length")
        assert in_view == 10_000
        rate = browser.run(
            f"new Promise((done) => {{const v = {PANE}.view, first = v.frames, t = performance.now(); let n = 0;"
            " const move = () => {v.x += n % 2 ? 3 : -3; v.draw(); n += 1;"
            " if (n < 60) requestAnimationFrame(move); else requestAnimationFrame(() =>"
            " done((v.frames - first) / (performance.now() - t) * 1000))}; move()})"
        )
        paint = browser.run(
            f"(() => {{const v = {PANE}.view, t = performance.now(); for (let i = 0; i < 20; i++) v.paint();"
            " v.context.getImageData(0, 0, 1, 1); return (performance.now() - t) / 20})()"
        )
        print(f"load {opened:.0f} ms, expand all and draw {expand:.0f} ms, {rate:.0f} frames/s, {paint:.1f} ms a frame")
        assert opened + expand < 4_000 and rate > 15


def test_hostile_traces_run_nothing(tmp_path):
    """Markup in every text and name. Mutation: innerHTML in place of text, or data that can end its element."""
    run = tmp_path / HOSTILE.replace("/", "_")
    bad = step(tree(5), ended=True)
    bad["extras"] = {HOSTILE: [1.0], "value": 1.0}
    bad["search"]["planner"] = HOSTILE
    texts = {str(n): f"</script>{HOSTILE}" for n in range(3)}
    names = [HOSTILE] * 4
    write(run, "ep000001.json", [bad], environment=HOSTILE, texts=texts, actions=names, pictures={"0": HOSTILE})
    page = write_explorer([Source(run)], tmp_path / "page.html")
    with chromium.Chromium() as browser:
        browser.open(page)
        browser.until(f"{PANE}.view.frames > 0")
        browser.run(f"{PANE}.tip(1, 30, 30)")
        assert browser.run("document.title") != "run" and "explore" in browser.run("document.title")
        assert browser.run("document.querySelectorAll('script').length") == 6, "the page's own five, and its data"
        assert browser.run("document.querySelectorAll('img[onerror], .side img').length") == 0
        assert "onerror" in browser.run("document.querySelector('.side').innerText"), "it is shown as text"
        assert browser.errors() == [] and browser.requests() == []


@pytest.mark.skipif(not AXE.is_file(), reason="PACKTRAIN_AXE names no folder with axe.min.js (npm install axe-core)")
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(page, dark):
    with chromium.Chromium(dark=dark) as browser:
        browser.open(page)
        browser.until(f"{PANE}.view.frames > 0")
        browser.run(f"packtrainExplorer.compare(true); {PANE}.open(1, 0)")
        browser.run("[...document.querySelectorAll('details')].forEach((e) => { e.open = true })")
        browser.run(AXE.read_text())
        found = browser.run(
            "axe.run().then((r) => r.violations.map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 200))]))"
        )
        assert found == []
