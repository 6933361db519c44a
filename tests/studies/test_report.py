import base64
import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from packtrain.errors import RunFolderError
from packtrain.studies.report import write_report

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
        return [data for path, data in self.texts if tag in path]

    def charts(self):
        return [
            attributes["aria-label"] for tag, attributes in self.tags if tag == "svg" and "aria-label" in attributes
        ]


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
    assert any("last evaluation during training, step 2K" in value for value in values)
    assert any("2023-11-14 22:13 UTC" in value for value in page.text("p"))
    assert "Catch-v0" in page.text("b")
    assert "fill-opacity" not in text, "one seed is a plain line"


def test_charts_come_in_order_and_the_rest_is_folded(tmp_path):
    """Fails if a metric is lost, shown twice, or if an unknown loss goes to the folded part."""
    _, page = read(write_report([make_run(tmp_path / "run")]))
    assert page.charts() == [
        "Evaluation return",
        "Training return",
        "Total loss",
        "model_loss",
        "Policy entropy",
        "Policy lag",
        "Speed",
        "grad_norm",
    ]
    assert page.text("summary") == ["1 more metric", "Configuration", "Log, last lines"]
    assert [attributes for tag, attributes in page.tags if tag == "details"] == [{}, {}, {}]


def test_without_any_known_metric_the_folded_part_is_open(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "kind": "planning", "depth": 3}\n')
    _, page = read(write_report([tmp_path]))
    assert page.charts() == ["planning/depth"]
    assert ("details", {"open": None}) in page.tags


def test_seeds_become_a_mean_with_an_interval(tmp_path):
    """Final returns 8, 10, 12: mean 10 ± 4.303 · 2 / √3."""
    for k, final in enumerate((8, 10, 12)):
        make_run(tmp_path / "run" / f"seed_{k}", final=final)
    text, page = read(write_report([tmp_path / "run"]))
    half = 4.30265 * 2 / math.sqrt(3)
    assert "10" in page.text("div") and "3" in page.text("div")
    assert any(f"95 % over seeds: {10 - half:.4g} to {10 + half:.4g}" in value for value in page.text("div"))
    assert text.count('fill-opacity="0.17"') == 8, "each of the eight charts has one band"
    assert page.charts().count("Evaluation return") == 1
    assert "Each seed" in page.text("summary") and "seed_2" in page.text("th")


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
    assert ">slow<" in large and ">fast<" in large
    assert page.text("code") == ["0.1", "0.2"], "n is the same in both"


def test_runs_of_one_name_are_told_apart_and_a_seed_is_named_with_its_run(tmp_path):
    _, page = read(
        write_report([make_run(tmp_path / "a" / "pong"), make_run(tmp_path / "b" / "pong")], tmp_path / "out.html")
    )
    assert {"a/pong", "b/pong"} <= set(page.text("div"))
    _, page = read(write_report([make_run(tmp_path / "c" / "seed_0")]))
    assert page.text("h1") == ["c/seed_0"]


def test_the_score_prefers_eval_json(tmp_path):
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


def test_the_interval_of_an_old_evaluation_is_made_anew_with_students_t(tmp_path):
    """Version 0.1 wrote 1.96 deviations of the mean; with four episodes it is 3.1824 of them."""
    old = {"episodes": 4, "return_mean": 10.0, "return_std": 2.0, "return_ci95": 1.96, "checkpoint": 2000}
    _, page = read(write_report([make_run(tmp_path / "run", final=99, evaluation=old)]))
    assert "95 % over episodes: 6.818 to 13.18; packtrain eval, 4 episodes, checkpoint 2K" in page.text("div")


def test_seeds_are_not_averaged_over_different_sources(tmp_path):
    """Fails if a seed's training row is averaged with another's evaluation, or one seed speaks for all."""
    make_run(tmp_path / "run" / "seed_0", final=1)
    make_run(tmp_path / "run" / "seed_1", final=3, evaluation={"return_mean": 50})
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
            "html head meta title style body main header h1 h2 p b div section figure svg rect line text path circle "
            "details summary table thead tbody tr th td small code pre footer".split()
        )
        assert not any(key.startswith("on") or key in ("href", "src") for _, given in page.tags for key in given)
        assert "<script" not in text.lower()
        for tag in ("pre", "th", "text", "summary", "b"):
            assert any("<script>" in data for data in page.text(tag)), f"the evil text must be shown in {tag}"
        assert len(chosen) == 1 or any("<script>" in data for data in page.text("code"))
    assert any("1 unreadable line" in data for data in page.text("p"))


def test_the_page_has_a_strict_policy_before_anything_else_and_asks_for_nothing(tmp_path):
    text, page = read(write_report([make_run(tmp_path / "run")]))
    policies = [given["content"] for tag, given in page.tags if given.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert text.index("Content-Security-Policy") < text.index("<style")
    assert not re.search(r"url\(|@import|javascript:", text)
    assert set(re.findall(r"https?://[^\"' ]*", text)) == {"http://www.w3.org/2000/svg"}, "a name space, not a request"


def test_light_and_dark_both_have_colours(tmp_path):
    text, _ = read(write_report([make_run(tmp_path / "run")]))
    light, dark = text[text.index("<style") : text.index("</style")].split("@media (prefers-color-scheme:dark)")
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
    assert path.stat().st_size < 150_000


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
    assert not [tag for tag, _ in page.tags if tag == "script"]
    assert "Final return" not in page.text("div") and page.text("summary")[0] == "1 metric"
    other = make_run(tmp_path / "other")
    (other / "toy.svg").write_text("<svg></svg>")
    page = Page(write_report([run, other]).read_text())
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 1, "only studies say what a picture of theirs is"
    assert page.text("small").count("final return") == 1


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
    assert "media-src data:" in text and "<script" not in text


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
    assert charts[charts.index("Model use") + 1] == "Weight by depth" and "grad_norm" in charts
    assert not [title for title in charts if "depth_" in title]
    named = [text for text in page.text("svg") if re.fullmatch(r"depth \d+", text)]
    assert named == [f"depth {d}" for d in range(11)]
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


def test_a_run_that_was_stopped_early_is_not_judged_by_its_first_weights(tmp_path):
    """Mutation: the last evaluation, whenever it was."""
    first = {"step": 0, "wall_s": 0.0, "kind": "eval", "return_mean": 1.0}
    later = {"step": 100, "wall_s": 1.0, "kind": "train", "episode_return": 5.0}
    _, page = read(write_report([with_rows(tmp_path / "run", first, later)]))
    assert page.text("div")[:2] == ["Final return", "5"]
