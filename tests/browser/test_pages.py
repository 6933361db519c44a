"""The report in a real browser. Skipped where there is no Chromium; `make test-browser` runs it."""

import json
import os
import pathlib
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import chromium

from packtrain.studies.report import write_report
from packtrain.studies.watch import LivePage, Server

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium.find() is None, reason="no Chromium is installed: apt-get install chromium"),
]
AXE = pathlib.Path(os.environ.get("PACKTRAIN_AXE", "")) / "axe.min.js"


def make_run(folder, env="Catch", lr=0.1, rows=40, scale=1.0):
    folder.mkdir(parents=True)
    lines = []
    for i in range(1, rows + 1):
        values = {"episode_return": scale * i, "total_loss": 1 / i, "entropy": 1.0, "extra/thing": float(i % 3)}
        lines.append({"step": 100 * i, "wall_s": 2.0 * i, "kind": "train", **values})
        if i % 10 == 0:
            lines.append({"step": 100 * i, "wall_s": 2.0 * i, "kind": "eval", "episodes": 9, "return_mean": scale * i})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.gin").write_text(f"env = '{env}'\nlr = {lr}\n")
    (folder / "log.txt").write_text("hello\n")
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two methods with three seeds each, and a third run in another environment."""
    root = tmp_path_factory.mktemp("runs")
    for name, scale in (("slow", 1.0), ("fast", 2.0)):
        for k in range(3):
            make_run(root / name / f"seed_{k}", lr=scale, scale=scale + k)
    make_run(root / "other", env="Pong")
    return write_report([root / "slow", root / "fast", root / "other"], root / "page.html")


@pytest.fixture
def browser(page):
    with chromium.Chromium() as browser:
        browser.open(page)
        browser.until("document.querySelector('.plot svg[aria-hidden]')")
        yield browser


def centre(browser, selector):
    """Scroll an element into view and return where its middle is."""
    found = f"document.querySelector({json.dumps(selector)})"
    browser.run(f"{found}.scrollIntoView({{block: 'center'}})")
    time.sleep(0.3)
    return browser.run(
        f"(() => {{const r = {found}.getBoundingClientRect();"
        " return [r.x + r.width / 2, r.y + r.height / 2, r.width]})()"
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_a_page_opens_without_errors_and_requests_and_fits(page, width, dark):
    with chromium.Chromium(width, 900, dark) as browser:
        browser.open(page)
        browser.until("document.querySelector('.plot svg[aria-hidden]')")
        browser.resize(width, browser.run("document.documentElement.scrollHeight"))
        browser.until("document.querySelectorAll('.plot svg[aria-hidden]').length >= 8")
        assert browser.errors() == [] and browser.requests() == []
        assert browser.run("document.documentElement.scrollWidth") == width, "nothing sticks out at the side"
        background = browser.run("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(15, 19, 24)" if dark else "rgb(245, 246, 248)")


def test_values_under_the_mouse(browser):
    x, y, width = centre(browser, "figure[data-chart='0.1'] .plot")
    browser.mouse("mouseMoved", x, y)
    tip = browser.run("document.querySelector(\"figure[data-chart='0.1'] .tip\").innerText")
    assert "step" in tip and "slow" in tip and "fast" in tip
    browser.mouse("mouseMoved", x, 2)
    assert browser.run("document.querySelector(\"figure[data-chart='0.1'] .tip\").hidden")


def test_a_drag_zooms_and_a_double_click_shows_all(browser):
    labels = (
        "[...document.querySelectorAll(\"figure[data-chart='0.1'] .plot text\")].map((e) => e.textContent).join(' ')"
    )
    whole = browser.run(labels)
    x, y, width = centre(browser, "figure[data-chart='0.1'] .plot")
    browser.mouse("mouseMoved", x, y)
    browser.mouse("mousePressed", x, y)
    browser.mouse("mouseMoved", x + width / 4, y)
    browser.mouse("mouseReleased", x + width / 4, y)
    zoomed = browser.run(labels)
    assert zoomed != whole and "0" not in zoomed.split()[-3:]
    for clicks in (1, 2):
        browser.mouse("mousePressed", x, y, clicks)
        browser.mouse("mouseReleased", x, y, clicks)
    assert browser.run(labels) == whole


def test_the_keyboard_reads_values_and_zooms(browser):
    centre(browser, "figure[data-chart='0.1'] .plot")
    browser.run("document.querySelector(\"figure[data-chart='0.1'] .plot\").focus()")
    tip = "document.querySelector(\"figure[data-chart='0.1'] .tip\").innerText"
    browser.key("ArrowRight")
    first = browser.run(tip)
    browser.key("ArrowRight")
    assert "step 100" in first and "step 200" in browser.run(tip)
    last = "[...document.querySelectorAll(\"figure[data-chart='0.1'] .plot text\")].map((e) => e.textContent).join(' ')"
    before = browser.run(last)
    browser.key("+")
    assert browser.run(last) != before
    browser.key("0")
    assert browser.run(last) == before
    browser.key("/")
    assert browser.run("document.activeElement.id") == "search"


def test_the_legend_hides_curves(browser):
    paths = "document.querySelectorAll(\"figure[data-chart='0.1'] .plot path[stroke-linejoin]\").length"
    assert browser.run(paths) == 2
    browser.run("document.querySelector('.chip[data-key=\"0:0\"]').click()")
    assert browser.run(paths) == 1
    assert browser.run("document.querySelector('.chip[data-key=\"0:0\"]').getAttribute('aria-pressed')") == "false"


def search_for(browser, text):
    found = f"const s = document.querySelector('#search'); s.value = {json.dumps(text)};"
    browser.run(f"(() => {{{found} s.dispatchEvent(new Event('input'))}})()")


def test_the_search_finds_folded_charts(browser):
    search_for(browser, "thing")
    assert browser.run("document.querySelector('#found').textContent").startswith("2 of ")
    shown = "[...document.querySelectorAll('figure[data-chart]')].filter((e) => e.offsetParent).length"
    assert browser.run(shown) == 2
    search_for(browser, "")
    assert browser.run(shown) > 4


def test_axis_smoothing_seeds_and_log_scale_redraw(browser):
    drawn = "document.querySelector(\"figure[data-chart='0.1'] .plot\").innerHTML"
    seen = {browser.run(drawn)}
    for change in (
        "const e = document.querySelector('#axis'); e.value = '1'; e.dispatchEvent(new Event('change'))",
        "const e = document.querySelector('#smooth'); e.value = '0.9'; e.dispatchEvent(new Event('input'))",
        "const e = document.querySelector('#seeds'); e.checked = false; e.dispatchEvent(new Event('change'))",
        "const e = document.querySelector('#log'); e.checked = true; e.dispatchEvent(new Event('change'))",
    ):
        browser.run(f"(() => {{{change}}})()")
        seen.add(browser.run(drawn))
    assert len(seen) == 5 and browser.errors() == []


def test_downloads_hold_the_chart(browser):
    """What is handed to the browser as a file, read back."""
    browser.run("""window.files = []; URL.createObjectURL = (blob) => { window.files.push(blob); return 'blob:x' };
        HTMLAnchorElement.prototype.click = function () { window.names = [...(window.names || []), this.download] };""")
    buttons = "[...document.querySelectorAll(\"figure[data-chart='0.1'] .choices button\")]"
    browser.run(f"{buttons}.slice(0, 3).forEach((b) => b.click())")
    browser.until("window.files.length === 3")
    assert browser.run("window.names") == ["training_return.csv", "training_return.svg", "training_return.png"]
    csv = browser.run("window.files[0].text()").splitlines()
    assert csv[0] == "curve,seed,step,wall_s,value,low,high"
    assert csv[1].startswith("slow,mean,100,2,2,") and any(line.startswith("fast,seed_2,4000,80,160") for line in csv)
    svg = browser.run("window.files[1].text()")
    assert "var(" not in svg and "Training return" in svg and ">fast<" in svg
    start = browser.run("window.files[2].arrayBuffer().then((b) => [...new Uint8Array(b.slice(0, 4))])")
    assert bytes(start) == b"\x89PNG"


def test_the_theme_can_be_chosen(browser):
    colour = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(colour)
    browser.run("document.querySelector('#theme').click()")
    assert browser.run(colour) == light
    browser.run("document.querySelector('#theme').click()")
    assert browser.run(colour) != light


def test_results_are_sorted_by_a_click(browser):
    names = "[...document.querySelectorAll('table.sortable tbody tr')].map((e) => e.children[0].textContent)"
    assert browser.run(names) == ["slow", "fast"]
    browser.run("document.querySelectorAll('table.sortable thead button')[1].click()")
    assert browser.run(names) == ["fast", "slow"]


@pytest.mark.skipif(not AXE.is_file(), reason="PACKTRAIN_AXE names no folder with axe.min.js (npm install axe-core)")
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(page, dark):
    with chromium.Chromium(dark=dark) as browser:
        browser.open(page)
        browser.run("[...document.querySelectorAll('details.fold')].forEach((e) => { e.open = true })")
        browser.resize(1400, browser.run("document.documentElement.scrollHeight"))
        time.sleep(0.5)
        browser.run(AXE.read_text())
        found = browser.run(
            "axe.run().then((r) => r.violations.map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 200))]))"
        )
        assert found == []


def test_a_live_page_follows_its_run_and_keeps_what_was_chosen(tmp_path):
    run = make_run(tmp_path / "run", rows=10)
    with Server(LivePage([run], None, 0.2)) as server, chromium.Chromium() as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.open(server.url)
        browser.until("document.querySelector('#live').textContent === 'live'")
        assert browser.run("document.querySelector('.tile:nth-child(2) .value').textContent") == "1K"
        browser.run("document.querySelector('#theme').click()")
        longer = make_run(tmp_path / "longer", rows=20)
        (longer / "metrics.jsonl").replace(run / "metrics.jsonl")
        browser.until("document.querySelector('.tile:nth-child(2) .value').textContent === '2K'")
        browser.until("document.querySelector('.plot svg[aria-hidden]')")
        assert browser.run("document.documentElement.dataset.theme") == "light"
        assert browser.errors() == [] and set(browser.requests()) == {server.url}
        server.shutdown()
        server.server_close()
        browser.until("document.querySelector('#live').textContent.includes('does not answer')")
