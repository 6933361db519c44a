import base64
import hashlib
import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from packtrain.errors import ConfigError, RunFolderError
from packtrain.studies import report_charts, report_data
from packtrain.studies.report import write_report
from packtrain.studies.report_charts import title_of

EVIL = "<script>alert('x')</script>\"><img src=http://evil.example/x onerror=alert(1)>"
VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """What a browser would build: tags with attributes, and the text in each kind of element."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} closes another element"

    def handle_data(self, data):
        self.texts.append((tuple(self.open), data))

    def text(self, tag):
        """What stands in elements of a kind, without the controls above the report."""
        return [data for path, data in self.texts if tag in path and "main" in path]

    def data(self):
        """The numbers that the page's script draws."""
        (data,) = [data for path, data in self.texts if path[-1:] == ("script",) and data.startswith('{"x"')]
        return json.loads(data)

    def charts(self):
        """The titles of all charts."""
        return [chart["t"] for section in self.data()["sections"] for chart in section["charts"]]

    def chart(self, title):
        """The first chart of a title."""
        return next(c for section in self.data()["sections"] for c in section["charts"] if c["t"] == title)


def make_run(folder, final=10.0, rows=20, config="env_id = 'Catch-v0'\nseed = 1\n", evaluation=None, log="hello\n"):
    folder.mkdir(parents=True)
    lines = []
    for i in range(1, rows + 1):
        values = {"episode_return": None if i == 1 else final * i / rows - 1, "total_loss": 5 / i, "entropy": 1.0}
        values |= {"steps_per_second": 1000.0, "policy_lag_mean": 2.0, "model_loss": 0.5, "grad_norm": 3.0}
        lines.append({"step": 100 * i, "wall_s": 5.0 * i, "kind": "train", **values})
        lines.append({"step": 100 * i, "wall_s": 5.0 * i, "kind": "eval", "return_mean": final * i / rows})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.gin").write_text(config)
    (folder / "log.txt").write_text(log)
    if evaluation is not None:
        (folder / "eval.json").write_text(json.dumps(evaluation))
    return folder


def with_rows(folder, *rows):
    """A run that has these rows alone."""
    run = make_run(folder)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def read(path):
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


def test_one_run_gives_one_page_in_its_folder(tmp_path):
    run = make_run(tmp_path / "run", final=12.5)
    os.utime(run / "metrics.jsonl", (1_700_000_000, 1_700_000_000))
    path = write_report([str(run)])
    text, page = read(path)
    assert path == run / "report.html"
    assert page.open == []
    values = page.text("div")
    assert {"12.5", "2K", "2,000", "1 min 40 s", "20"} <= set(values)
    assert "last evaluation during training, step 2K" in values
    assert any("2023-11-14 22:13 UTC" in value for value in page.text("p"))
    assert "Catch-v0" in page.text("b")
    assert 'fill-opacity="0.17"' not in text, "one seed is a plain line"


def test_charts_come_in_order_and_the_rest_is_folded(tmp_path):
    """Fails if a metric is lost, shown twice, or if an unknown loss goes to the folded part."""
    _, page = read(write_report([make_run(tmp_path / "run")]))
    assert page.charts() == [
        "Evaluation return",
        "Training return",
        "Total loss",
        "Model loss",
        "Policy entropy",
        "Policy lag",
        "Speed",
        "Gradient norm",
    ]
    assert page.text("summary") == ["1 more metric", "Last values", "Configuration", "Log, last lines"]
    assert not any("open" in attributes for tag, attributes in page.tags if tag == "details")
    figures = [given["data-chart"] for tag, given in page.tags if tag == "figure"]
    assert figures == [f"0.{place}" for place in range(8)], "each chart has one place"


def test_without_any_known_metric_the_folded_part_is_open(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "kind": "planning", "depth": 3}\n')
    _, page = read(write_report([tmp_path]))
    assert page.charts() == ["Planning: depth"]
    assert [given for tag, given in page.tags if tag == "details" and "open" in given]


def test_seeds_become_a_mean_with_an_interval(tmp_path):
    """Final returns 8, 10, 12: mean 10 ± 4.303 · 2 / √3."""
    for k, final in enumerate((8, 10, 12)):
        make_run(tmp_path / "run" / f"seed_{k}", final=final)
    text, page = read(write_report([tmp_path / "run"]))
    half = 4.30265 * 2 / math.sqrt(3)
    assert "10" in page.text("div") and "3" in page.text("div")
    assert any(f"95 % over seeds: {10 - half:.4g} to {10 + half:.4g}" in value for value in page.text("div"))
    for chart in page.data()["sections"][0]["charts"]:
        (line,) = chart["lines"]
        assert len(line["l"]) == len(line["h"]) == len(line["y"]) and [seed[2] for seed in line["e"]] == [
            "seed_0",
            "seed_1",
            "seed_2",
        ]
    (line,) = page.chart("Evaluation return")["lines"]
    assert (line["y"][-1], line["l"][-1], line["h"][-1]) == pytest.approx((10, 10 - half, 10 + half), abs=1e-3)
    assert [seed[1][-1] for seed in line["e"]] == [8, 10, 12]
    assert "Each seed" in page.text("summary") and "seed_2" in page.text("th")


def test_two_seeds_are_drawn_as_lines_without_their_vast_band(tmp_path):
    """Mutation: the interval of two seeds, 12.7 standard errors to each side, in the chart."""
    for k, final in enumerate((8, 12)):
        make_run(tmp_path / "run" / f"seed_{k}", final=final)
    _, page = read(write_report([tmp_path / "run"]))
    (line,) = page.chart("Evaluation return")["lines"]
    assert "l" not in line and len(line["e"]) == 2 and line["y"][-1] == 10


def test_several_runs_share_charts_and_their_differences_are_listed(tmp_path):
    a = make_run(tmp_path / "slow", final=5, config="Impala.lr = 0.1\nImpala.n = 3\n")
    b = make_run(tmp_path / "fast", final=9, config="Impala.lr = 0.2\nImpala.n = \\\n    3\n")
    path = write_report([a, b, a], tmp_path / "compare.html")
    text, page = read(path)
    assert path == tmp_path / "compare.html" and not (a / "report.html").exists()
    assert page.charts().count("Evaluation return") == 1
    assert "2 runs compared" in page.text("h1"), "the same folder twice is one run"
    large = re.search(r'<svg[^>]*aria-label="Evaluation return".*?</figure>', text)[0]
    assert large.count("<path") == 2 and "--curve-1" in large and "--curve-2" in large
    assert page.data()["sections"][0]["runs"] == [{"n": "slow", "c": 0}, {"n": "fast", "c": 1}]
    assert page.text("code") == ["0.1", "0.2"], "n is the same in both"


def test_runs_of_one_name_are_distinguished_and_a_seed_is_named_with_its_run(tmp_path):
    _, page = read(
        write_report([make_run(tmp_path / "a" / "pong"), make_run(tmp_path / "b" / "pong")], tmp_path / "out.html")
    )
    assert {"a/pong", "b/pong"} <= set(page.text("th"))
    _, page = read(write_report([make_run(tmp_path / "c" / "seed_0")]))
    assert page.text("h1") == ["c/seed_0"]


def test_an_eval_with_more_episodes_is_the_headline(tmp_path):
    evaluation = {
        "episodes": 50,
        "return_mean": 7.25,
        "return_ci95": 0.5,
        "rewards": {"true": -3.5},
        "checkpoint": 2000,
    }
    _, page = read(write_report([make_run(tmp_path / "run", final=99, evaluation=evaluation)]))
    assert "7.25" in page.text("div")
    note = "95 % over episodes: 6.75 to 7.75; packtrain eval, 50 episodes, checkpoint 2K"
    assert note in page.text("div")
    assert "rewards/true" in page.text("th") and "−3.5" in page.text("td")


def evaluations(run, episodes, std=3.0):
    """Give the evaluation rows of a run as many episodes, and a spread."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "eval":
            line |= {"episodes": episodes, "return_std": std}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_casual_eval_never_replaces_the_scheduled_evaluation(tmp_path):
    """Mutation: the latest of both. The interval is Student's t: 2.2622 · 3 / √10."""
    casual = {"episodes": 3, "return_mean": 999, "checkpoint": 2000}
    run = make_run(tmp_path / "run", final=9, evaluation=casual)
    evaluations(run, 10)
    _, page = read(write_report([run]))
    assert page.text("div")[:2] == ["Final return", "9"]
    half = 2.26216 * 3 / math.sqrt(10)
    note = (
        f"95 % over episodes: {9 - half:.4g} to {9 + half:.4g}; last evaluation during training, step 2K, 10 episodes"
    )
    assert note in page.text("div")


def test_of_evaluations_with_as_many_episodes_the_scheduled_one_counts(tmp_path):
    run = make_run(tmp_path / "run", final=9, evaluation={"episodes": 10, "return_mean": 5, "checkpoint": 2000})
    evaluations(run, 10)
    assert read(write_report([run]))[1].text("div")[:2] == ["Final return", "9"]


@pytest.mark.parametrize(("greedy", "shown"), [(True, "50"), (False, "3")])
def test_an_eval_of_other_actions_than_the_runs_own_is_no_headline(tmp_path, greedy, shown):
    """Mutation: sampled actions compared with greedy ones."""
    evaluation = {"episodes": 500, "return_mean": 50, "checkpoint": 2000, "greedy": greedy}
    config = "env_id = 'Catch-v0'\nEvaluation.best = 'greedy'\n"
    run = make_run(tmp_path / "run", final=3, evaluation=evaluation, config=config)
    assert read(write_report([run]))[1].text("div")[:2] == ["Final return", shown]


def test_the_interval_of_an_old_evaluation_is_recomputed_with_students_t(tmp_path):
    """Version 0.1 wrote 1.96 deviations of the mean; with four episodes it is 3.1824 of them."""
    old = {"episodes": 4, "return_mean": 10.0, "return_std": 2.0, "return_ci95": 1.96, "checkpoint": 2000}
    _, page = read(write_report([make_run(tmp_path / "run", final=99, evaluation=old)]))
    assert "95 % over episodes: 6.818 to 13.18; packtrain eval, 4 episodes, checkpoint 2K" in page.text("div")


def test_seeds_are_not_averaged_over_different_sources(tmp_path):
    """Fails if a seed's training row is averaged with another's evaluation, or one seed speaks for all."""
    make_run(tmp_path / "run" / "seed_0", final=1)
    make_run(tmp_path / "run" / "seed_1", final=3, evaluation={"return_mean": 50, "episodes": 99})
    _, page = read(write_report([tmp_path / "run"]))
    assert page.text("div")[:2] == ["Final return", "2"]
    assert not any("of 2 seeds" in value for value in page.text("div"))


def test_an_earlier_checkpoint_says_nothing_about_the_end(tmp_path):
    """Mutation: whatever was evaluated last."""
    evaluation = {"return_mean": 50, "checkpoint": 500}
    _, page = read(write_report([make_run(tmp_path / "run", final=3, evaluation=evaluation)]))
    assert page.text("div")[:2] == ["Final return", "3"]


def test_speed_is_steps_over_time(tmp_path):
    """Mutation: the mean of what rows say, in which fast rows count as much as slow ones."""
    fast = {"step": 900, "wall_s": 1.0, "kind": "train", "steps_per_second": 900.0}
    slow = {"step": 1000, "wall_s": 100.0, "kind": "train", "steps_per_second": 1.0}
    _, page = read(write_report([with_rows(tmp_path / "run", fast, slow)]))
    assert "10" in page.text("div") and "steps per second" in page.text("div")


@pytest.mark.parametrize("evaluation", ["[]", "{", "[" * 100_000, '{"return_mean": "x", "return_ci95": [1]}', "null"])
def test_an_eval_json_that_says_nothing_is_passed_over(tmp_path, evaluation):
    run = make_run(tmp_path / "run", final=3)
    (run / "eval.json").write_text(evaluation)
    _, page = read(write_report([run]))
    assert "3" in page.text("div")


def test_nothing_from_a_run_folder_becomes_markup(tmp_path):
    """Fails if any one of the places below is written without escape()."""
    config = f"env_id = '{EVIL[:27]}'\nImpala.name = '{EVIL}'\n"
    evaluation = {"return_mean": 1, EVIL: 2, "rewards": {EVIL: 3}}
    name = "<script>alert(1)<&'"
    runs = []
    for folder in (name, "b" + name):
        for k in range(2):
            seed = make_run(
                tmp_path / folder / f"seed_{k}",
                config=config + f"<script>{folder} = '<script>{folder}'\n",
                evaluation=evaluation,
                log=EVIL,
            )
            with (seed / "metrics.jsonl").open("a") as file:
                for kind, metric in (("train", EVIL), (EVIL, "return_mean"), ("train", EVIL + "loss"), ("t", "\ud800")):
                    file.write(json.dumps({"step": 9, "kind": kind, metric: 1}) + "\n")
                file.write(EVIL + "\n")
        runs.append(tmp_path / folder)
    for chosen in (runs, runs[:1]):
        text, page = read(write_report(chosen, tmp_path / "out.html"))
        assert page.open == []
        assert {tag for tag, _ in page.tags} <= set(
            "html head meta title style body main header h1 h2 h3 p b div section figure figcaption span i svg rect "
            "line text path circle details summary table thead tbody tr th td small code pre footer script label input "
            "select option output button".split()
        )
        assert not any(key.startswith("on") or key in ("href", "src") for _, given in page.tags for key in given)
        assert text.lower().count("<script") == 2, "the data and our own script"
        for tag in ("pre", "th", "summary", "b", "figcaption"):
            assert any("<script>" in data for data in page.text(tag)), f"the evil text must be shown in {tag}"
        assert len(chosen) == 1 or any("<script>" in data for data in page.text("code"))
        assert any("<script>" in run["n"] for run in page.data()["sections"][0]["runs"])
    assert any("1 unreadable line" in data for data in page.text("p"))


def test_the_page_has_a_strict_policy_before_anything_else_and_loads_nothing(tmp_path):
    text, page = read(write_report([make_run(tmp_path / "run")]))
    policies = [given["content"] for tag, given in page.tags if given.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert "connect-src" not in policies[0] and "unsafe-eval" not in policies[0]
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policies[0], "no other script may run"
    assert text.index("Content-Security-Policy") < text.index("<style")
    assert not re.search(r"url\(|@import|javascript:|innerHTML|\beval\b\(|insertAdjacent|document\.write", text)
    assert set(re.findall(r"https?://[^\"' ]*", text)) == {"http://www.w3.org/2000/svg"}, "a name space, not a request"


def test_light_and_dark_both_have_colours(tmp_path):
    text, _ = read(write_report([make_run(tmp_path / "run")]))
    light, dark, *_ = text[text.index("<style") : text.index("</style")].split("@media (prefers-color-scheme:dark)")
    for name in ("--page", "--card", "--ink", "--muted", "--edge", "--warn", "--code", "--curve-1", "--curve-7"):
        assert f"{name}:" in light and f"{name}:" in dark


def test_the_log_shows_its_end_without_terminal_codes(tmp_path):
    """Fails if the whole log is read into the page."""
    log = "".join(f"line {i}\n" for i in range(100_000)) + "\x1b[31mred\x1b[0m\rnext\n"
    _, page = read(write_report([make_run(tmp_path / "run", log=log)]))
    shown = page.text("pre")[-1].split("\n")
    assert shown[-3:] == ["line 99999", "red", "next"] and len(shown) == 60


def test_a_long_run_stays_a_small_page(tmp_path):
    """Fails if curves are drawn with every row: 20 000 rows would be megabytes."""
    path = write_report([make_run(tmp_path / "run", rows=20_000)])
    assert path.stat().st_size < 250_000


def test_a_page_with_thousands_of_metrics_is_cut_and_says_so(tmp_path):
    line = {"step": 1, "kind": "train", **{f"m{i}": i for i in range(1000)}}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    _, page = read(write_report([tmp_path]))
    assert len(page.charts()) == 150
    assert any("850 more metrics are not drawn" in data for data in page.text("p"))


def test_seeds_that_stopped_early_or_never_began_are_mentioned(tmp_path):
    make_run(tmp_path / "run" / "seed_0", rows=20)
    make_run(tmp_path / "run" / "seed_1", rows=8)
    make_run(tmp_path / "run" / "seed_2", rows=0)
    _, page = read(write_report([tmp_path / "run"]))
    warnings = "\n".join(page.text("p"))
    assert "run/seed_2: no metrics yet." in warnings
    assert "seed_1 800 and others up to 2K" in warnings


def test_a_run_without_rows_still_has_a_page(tmp_path):
    (tmp_path / "config.gin").write_text("a = 1\n")
    _, page = read(write_report([tmp_path]))
    assert page.charts() == []
    assert "–" in page.text("div")


def test_a_text_file_that_cannot_be_read_says_why(tmp_path, monkeypatch):
    """A run folder of another user: its log may be closed to us while the metrics are open."""
    run = make_run(tmp_path / "run")
    plain = Path.open

    def closed(self, *arguments, **options):
        if self.name in ("log.txt", "config.gin"):
            raise PermissionError(13, "Permission denied")
        return plain(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", closed)
    path = write_report([run])
    monkeypatch.undo()
    assert read(path)[1].text("pre") == ["(cannot be read: Permission denied)"] * 2


def test_what_cannot_be_read_or_written_is_one_line(tmp_path):
    run = make_run(tmp_path / "run")
    with pytest.raises(RunFolderError, match="at least one"):
        write_report([])
    with pytest.raises(RunFolderError, match="does not exist"):
        write_report([run, tmp_path / "nowhere"])
    with pytest.raises(RunFolderError, match="cannot write the report to .*page.html"):
        write_report([run], run / "config.gin" / "page.html")


def test_a_page_that_cannot_be_put_in_place_leaves_the_old_one_and_no_litter(tmp_path, monkeypatch):
    def refuse(source, target, **_):
        raise OSError(28, "No space left on device")

    run = make_run(tmp_path / "run")
    (run / "report.html").write_text("old")
    before = sorted(run.iterdir())
    monkeypatch.setattr("packtrain.files.os.replace", refuse)
    with pytest.raises(RunFolderError, match="No space left"):
        write_report([run])
    assert sorted(run.iterdir()) == before and (run / "report.html").read_text() == "old"


def test_an_out_folder_gets_the_page_and_no_litter(tmp_path):
    run = make_run(tmp_path / "run")
    (tmp_path / "pages").mkdir()
    assert write_report([run], tmp_path / "pages") == tmp_path / "pages" / "report.html"
    assert write_report([run], tmp_path / "new" / "p.html").exists()
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["report.html"]


def test_a_study_shows_its_picture_and_no_return(tmp_path):
    """What is in the picture stays inside an image. Mutation: the SVG put into the page as it is; a return's tile."""
    run = make_run(tmp_path / "study", config="Study.seed = 0\n")
    (run / "metrics.jsonl").write_text('{"step": 1, "wall_s": 0.1, "kind": "train", "error": 2.0}\n')
    (run / "toy.svg").write_text(f"<svg>{EVIL}</svg>")
    (run / "vast.svg").write_bytes(b" " * 3_000_000)
    page = Page(write_report([run]).read_text())
    (image,) = [attributes for tag, attributes in page.tags if tag == "img"]
    head, data = image["src"].split(",")
    assert head == "data:image/svg+xml;base64" and base64.b64decode(data).decode() == f"<svg>{EVIL}</svg>"
    assert "Final return" not in page.text("div") and page.text("summary")[0] == "1 metric"
    other = make_run(tmp_path / "other")
    (other / "toy.svg").write_text("<svg></svg>")
    page = Page(write_report([run, other]).read_text())
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 1, "only studies say what a picture of theirs is"
    assert page.text("div").count("Final return") == 1


PNG = b"\x89PNG\r\n\x1a\n"


def make_film(run, name, data=PNG + b"..."):
    (run / "videos").mkdir(exist_ok=True)
    (run / "videos" / name).write_bytes(data)


def test_films_are_in_the_page_newest_first_with_what_is_known_of_them(tmp_path):
    """Mutations: the order of names; anything else in the folder shown; a return from another film."""
    told = [{"file": "videos/20_episode_1.png", "length": 1000, "return": 6123.4, "episode": 1}, "x", {"file": EVIL}]
    run = make_run(tmp_path / "run", evaluation={"return_mean": 1, "videos": told})
    for name in (
        "3_episode_1.png",
        "20_episode_10.png",
        "20_episode_1.png",
        "20_episode_2.mp4",
        "20_weights.json",
        "a.png",
    ):
        make_film(run, name, PNG + name.encode() if name.endswith("png") else b"\0\0\0\x20ftypisom" + name.encode())
    make_film(run, "20_episode_3.png", b"root:x:0:0, and no picture")
    text, page = read(write_report([run]))
    shown = [(tag, given) for tag, given in page.tags if tag in ("img", "video")]
    assert [tag for tag, _ in shown] == ["img", "video", "img", "img"]
    decoded = [base64.b64decode(given["src"].partition(",")[2])[-20:] for _, given in shown]
    wanted = (b"20_episode_1.png", b"20_episode_2.mp4", b"20_episode_10.png", b"3_episode_1.png")
    assert all(data.endswith(name) for data, name in zip(decoded, wanted, strict=True))
    assert shown[0][1]["src"].startswith("data:image/png;") and shown[1][1]["src"].startswith("data:video/mp4;")
    captions = page.text("figcaption")
    assert captions[0] == "run: episode 1 at step 20, 1,000 steps, return 6,123"
    assert captions[1:3] == ["run: episode 2 at step 20", "run: episode 10 at step 20"]
    assert "media-src data:" in text


def test_a_film_that_is_too_large_is_named(tmp_path):
    """Mutation: the limit counts each film alone."""
    run = make_run(tmp_path / "run")
    for episode in range(1, 5):
        make_film(run, f"7_episode_{episode}.png", PNG + b"." * 2_500_000)
    path = write_report([run])
    _, page = read(path)
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 2 and path.stat().st_size < 9_000_000
    (line,) = [text for text in page.text("p") if "too large" in text]
    assert "run/videos/7_episode_3.png, run/videos/7_episode_4.png." in line


def test_the_weights_of_depths_share_a_chart_beside_the_models_use(tmp_path):
    """Mutation: a chart for each depth; depths in the order of their names."""
    for name in ("run", "other"):
        run = make_run(tmp_path / name)
        with (run / "metrics.jsonl").open("a") as file:
            for step in (100, 200):
                depths = {f"weight/depth_{depth}": 1 / 11 for depth in range(11)}
                file.write(json.dumps({"step": step, "kind": "train", "model_use": 0.5, **depths}) + "\n")
    _, page = read(write_report([tmp_path / "run"]))
    charts = page.charts()
    assert charts[charts.index("Model use") + 1] == "Weight by depth" and "Gradient norm" in charts
    assert not [title for title in charts if "depth_" in title]
    assert [line["n"] for line in page.chart("Weight by depth")["lines"]] == [f"depth {d}" for d in range(11)]
    _, page = read(write_report([tmp_path / "run", tmp_path / "other"]))
    assert page.charts()[page.charts().index("Model use") + 1 :][:2] == [
        "Weight by depth, run",
        "Weight by depth, other",
    ]


def test_settings_that_differ_are_values(tmp_path):
    """Mutations: comments beside them; the names of knobs instead of what they hold."""
    texts = ["a = 1  # of each\nRun.total_steps = %a\n", "a = 2  # of each\nRun.total_steps = %a\nsame = 'x  y'\n"]
    runs = [make_run(tmp_path / name, config=text) for name, text in zip("ab", texts, strict=True)]
    _, page = read(write_report(runs, tmp_path / "out.html"))
    assert page.text("code")[:5] == ["1", "2", "1", "2", "'x  y'"]


def test_a_run_that_was_stopped_early_is_not_scored_by_its_first_weights(tmp_path):
    """Mutation: the last evaluation, whenever it was."""
    first = {"step": 0, "wall_s": 0.0, "kind": "eval", "return_mean": 1.0}
    later = {"step": 100, "wall_s": 1.0, "kind": "train", "episode_return": 5.0}
    _, page = read(write_report([with_rows(tmp_path / "run", first, later)]))
    assert page.text("div")[:2] == ["Final return", "5"]


def channels(folder, true, coins):
    """A run that learns from coins while the true reward is another."""
    rows = [
        {"step": s, "kind": "train", "episode_return": coins * s, "episode_return/true": true * s}
        | {"episode_return/coins": coins * s}
        for s in (1, 2, 3)
    ]
    return with_rows(folder, *rows)


def test_the_reward_channels_of_one_run_share_a_chart(tmp_path):
    """Mutation: the return that is learned from a second time; a chart of its own beside it."""
    _, page = read(write_report([channels(tmp_path / "run", -1, 2)]))
    assert page.charts() == ["Training return by reward channel"]
    lines = page.chart("Training return by reward channel")["lines"]
    assert [(line["n"], line["y"]) for line in lines] == [("true", [-1, -2, -3]), ("coins (learned from)", [2, 4, 6])]


def test_the_reward_channels_of_several_runs_are_beside_each_other(tmp_path):
    runs = [channels(tmp_path / "a", -1, 2), channels(tmp_path / "b", 1, 1)]
    _, page = read(write_report(runs))
    assert page.charts() == ["Training return", "Training return, true", "Training return, coins"]
    assert [line["y"][-1] for line in page.chart("Training return, true")["lines"]] == [-3, 3]


def test_runs_of_different_environments_are_separate_sections(tmp_path):
    """Mutation: returns of two environments in one chart."""
    runs = [make_run(tmp_path / n, config=f"env = '{e}'\n") for n, e in (("a", "Catch"), ("b", "Pong"), ("c", "Catch"))]
    _, page = read(write_report(runs, tmp_path / "out.html"))
    assert page.text("h2") == ["Catch", "Pong"]
    assert [[run["n"] for run in section["runs"]] for section in page.data()["sections"]] == [["a", "c"], ["b"]]
    assert [given["href"] for tag, given in page.tags if tag == "a"] == ["#environment-0", "#environment-1"]


def test_compared_runs_of_one_value_are_one_curve(tmp_path):
    """Mutation: values in the order of their text, 10 before 9."""
    for name, lr, final in (("a", 10, 1), ("b", 9, 4), ("c", 10, 3)):
        make_run(tmp_path / name, final=final, config=f"env = 'Catch'\nlr = {lr}\nAdam.lr = %lr\n")
    runs = [tmp_path / name for name in "abc"]
    _, page = read(write_report(runs, tmp_path / "out.html", "lr"))
    section = page.data()["sections"][0]
    assert [run["n"] for run in section["runs"]] == ["lr = 9", "lr = 10"]
    assert [line["y"][-1] for line in page.chart("Evaluation return")["lines"]] == [4, 2]
    assert page.text("h1") == ["3 runs compared by lr"]
    _, page = read(write_report(runs, tmp_path / "out.html", "Adam.lr"))
    assert [run["n"] for run in page.data()["sections"][0]["runs"]] == ["Adam.lr = 9", "Adam.lr = 10"]
    with pytest.raises(ConfigError, match=r"no run has a setting of this name \(did you mean 'lr'\?\)"):
        write_report(runs, tmp_path / "out.html", "lrr")


def test_pooled_runs_of_different_length_say_so_and_lose_no_chart(tmp_path):
    """Mutations: charts without a common step dropped; no warning; the most steps as those of each."""
    config = "env = 'Catch'\nlr = 1\n"
    make_run(tmp_path / "long", rows=20, config=config)
    short = [{"step": step, "wall_s": 1.0, "kind": "train", "episode_return": 1.0} for step in (20, 40)]
    with_rows(tmp_path / "short", *short)
    (tmp_path / "short" / "config.gin").write_text(config)
    text, page = read(write_report([tmp_path / "long", tmp_path / "short"], tmp_path / "out.html", "lr"))
    warnings = "\n".join(page.text("p"))
    assert "lr = 1: the runs have reached different steps, short 40 and others up to 2K" in warnings
    assert "no mean over them, and are drawn one by one: Training return." in warnings
    (line,) = page.chart("Training return")["lines"]
    assert (line["y"], [seed[2] for seed in line["e"]]) == ([], ["long", "short"])
    assert "40 to 2,000 a seed" in text
    assert "lr = 1, short" in text  # in the picture for readers without scripts


def test_last_values_have_no_bookkeeping_and_say_nothing_twice(tmp_path):
    """Mutations: an interval of environment steps; eval.json beside an evaluation of the same values."""
    for name, steps in (("a", 600), ("b", 10_000)):
        row = {"step": steps, "wall_s": 1.0}
        rows = [
            {**row, "kind": "train", "env_steps": steps, "updates": 3, "updates/policy": 3, "loss": 0.5},
            {**row, "kind": "eval", "return_mean": 7.0, "solved": 0.25},
        ]
        run = with_rows(tmp_path / name, *rows)
        evaluation = {"return_mean": 8.0, "solved": 0.25, "checkpoint": steps, "episodes": 4}
        (run / "eval.json").write_text(json.dumps(evaluation))
    text, page = read(write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out.html"))
    table = text[text.index("Last values") :].partition("</details>")[0]
    heads = re.findall(r"<td>([^<]*)</td><th scope=row>([^<]*)</th>", table)
    assert heads == [("packtrain eval", "return_mean"), ("train", "loss"), ("eval", "return_mean"), ("eval", "solved")]


def test_methods_are_compared_where_there_are_seeds_enough(tmp_path):
    """Returns 1, 2, 3 against 2, 3, 9: seeds of the second win with probability 7/9."""
    for name, finals in (("a", (1, 2, 3)), ("b", (2, 3, 9))):
        for k, final in enumerate(finals):
            make_run(tmp_path / name / f"seed_{k}", final=final)
    _, page = read(write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out.html"))
    assert "Probability of improvement" in page.text("h3") and "0.7778 " in page.text("td")
    profile = page.chart("Performance profile")
    assert profile["fixed"] == "final return" and [line["n"] for line in profile["lines"]] == ["b", "a"]
    assert profile["lines"][0]["y"][0] == 1 and profile["lines"][0]["y"][-1] == 0
    _, page = read(write_report([tmp_path / "a" / "seed_0", tmp_path / "b" / "seed_0"], tmp_path / "out.html"))
    assert "Probability of improvement" not in page.text("h3"), "one seed says nothing about others"


def test_atari_games_have_human_normalised_scores_and_the_estimate(tmp_path):
    """The scores of IMPALA, whose published estimate is 227 %."""
    impala = {"BattleZone": 20885, "DoubleDunk": -0.3, "NameThisGame": 21537, "Phoenix": 210996, "Qbert": 351200}
    for game, score in impala.items():
        make_run(tmp_path / game, final=score, config=f"env = '{game}NoFrameskip-v4'\n")
    _, page = read(write_report([tmp_path / game for game in impala], tmp_path / "out.html"))
    assert "Atari-5 estimate of the median over 57 games" in page.text("th") and "226.4 %" in page.text("b")
    assert "2,641 %" in page.text("td"), "Qbert"
    _, page = read(write_report([tmp_path / "Qbert"]))
    assert "2,641 %" in page.text("td") and not any("Atari-5" in text for text in page.text("th"))


def test_what_an_evaluation_says_twice_is_shown_once(tmp_path):
    """Mutation: return_greedy_mean beside return_mean where greedy returns are return_mean."""
    rows = [{"step": s, "kind": "eval", "return_mean": s, "return_greedy_mean": s} for s in (1.5, 2.5)]
    rows = [row | {"step": k, "return_sampled_mean": 9 * k, "return_ci95": 1.0} for k, row in enumerate(rows)]
    _, page = read(write_report([with_rows(tmp_path / "run", *rows)]))
    assert page.charts() == ["Evaluation return", "Evaluation return, sampled actions"]


@pytest.mark.parametrize(
    ("metric", "title"),
    [
        (("train", "value_loss"), "Value loss"),
        (("train", "td_error"), "TD error"),
        (("train", "q/kl_loss"), "Q · KL loss"),
        (("eval/full", "return_mean"), "Evaluation return, full"),
        (("eval", "score"), "Evaluation: score"),
        (("planning", "depth"), "Planning: depth"),
    ],
)
def test_titles_are_readable(metric, title):
    assert title_of(metric)[0] == title


def test_axes_that_are_the_same_are_written_once(tmp_path):
    """Mutation: steps and seconds with every metric of a run."""
    _, page = read(write_report([make_run(tmp_path / "run")]))
    assert len(page.data()["x"]) == 2, "the first training row has no return"


def test_many_runs_get_fewer_points_each(tmp_path):
    run = report_data.load(make_run(tmp_path / "run"), "run", 0)
    assert report_charts.budget_of([[run]]) == report_charts.LARGE_POINTS
    assert report_charts.budget_of([[run] * 2000]) == 1_000_000 // (2000 * 8)
    assert report_charts.budget_of([[run] * 100_000]) == report_charts.FEWEST_POINTS
