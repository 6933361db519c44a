import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain.studies.chart import PALETTE, Curve, escape, human, line_chart, nice_ticks, palette_css, tick_labels

SVG = "{http://www.w3.org/2000/svg}"
STEPS = [100_000 * i for i in range(1, 61)]


def rising(name, slope, band=0.0):
    values = [slope * step for step in STEPS]
    low, high = ([value - band for value in values], [value + band for value in values]) if band else (None, None)
    return Curve(name, STEPS, values, low, high)


def draw(curves, **options):
    """The chart as a parsed tree, which checks that it is well-formed, beside its text."""
    text = line_chart(curves, options.pop("title", "Return"), "steps", options.pop("y_label", ""), **options)
    return ElementTree.fromstring(text), text


def texts(tree):
    return [element.text for element in tree.iter(SVG + "text")]


def lines(tree):
    """The points of each drawn curve."""
    paths = [path.get("d") for path in tree.iter(SVG + "path") if path.get("fill") == "none"]
    return [[tuple(map(float, point.split())) for point in path[1:].split("L")] for path in paths]


def bands(tree):
    return [path for path in tree.iter(SVG + "path") if path.get("fill-opacity")]


@pytest.mark.parametrize(
    ("low", "high", "want"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.1, 0.32, [0.1, 0.15, 0.2, 0.25, 0.3]),
        (-21, 21, [-20, -10, 0, 10, 20]),
        (0, 2_000_000, [0, 500_000, 1_000_000, 1_500_000, 2_000_000]),
        (3, 3, []),
        (5, 1, []),
        (0, math.inf, []),
        (math.nan, 1, []),
        (1e15, 1e15 + 1e-3, []),
    ],
)
def test_ticks_are_round_numbers_in_the_range(low, high, want):
    """Equal, not nearly: 0.30000000000000004 would fail."""
    assert nice_ticks(low, high) == want


@given(st.floats(-1e12, 1e12), st.floats(1e-6, 1e12), st.integers(2, 8))
def test_ticks_are_one_two_five_and_about_as_many_as_asked(low, span, count):
    high = low + span
    ticks = nice_ticks(low, high, count)
    if span < 1e-9 * abs(low):
        return
    assert (count - 1) / 2 <= len(ticks) <= 2 * count + 1
    assert all(low - 1e-6 * span <= tick <= high + 1e-6 * span for tick in ticks)
    spacing = (ticks[-1] - ticks[0]) / (len(ticks) - 1) if len(ticks) > 1 else 1
    assert round(float(f"{spacing:.3e}"[:5]), 1) in (1, 2, 5, 10)
    labels = tick_labels(ticks)
    assert len(set(labels)) == len(labels), f"two ticks look the same: {labels}"


def test_labels_are_numbers_for_people():
    assert tick_labels([0, 500_000, 1_000_000, 1_500_000]) == ["0", "500K", "1M", "1.5M"]
    assert tick_labels([1_000_000, 1_000_100]) == ["1M", "1.0001M"]
    assert tick_labels([-0.5, 0, 0.5]) == ["−0.5", "0", "0.5"]
    assert tick_labels([0, 2e-5, 4e-5]) == ["0", "2e−5", "4e−5"]
    assert tick_labels([]) == []


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (0, "0"),
        (100_000, "100K"),
        (1_500_000, "1.5M"),
        (999.9, "1K"),
        (999_999, "1M"),
        (-2e9, "−2B"),
        (0.25, "0.25"),
        (1e-5, "1e−5"),
        (1e20, "1e20"),
        (math.nan, "–"),
        (-math.inf, "−∞"),
    ],
)
def test_human(value, want):
    """999_999 fails if the suffix is chosen before rounding: 1000K."""
    assert human(value) == want


def test_human_with_fewer_digits_than_the_number_has():
    assert human(123, digits=2) == "120"
    assert human(123_456, digits=2) == "120K"


def test_a_chart_shows_its_curves_in_the_frame_and_upright():
    """Fails if the vertical axis is not turned over, if curves leave the drawing, or if one is lost."""
    tree, _ = draw([rising("slow", 1e-6), rising("fast", 2e-6)], y_label="per episode")
    slow, fast = lines(tree)
    assert len(slow) == len(fast) == len(STEPS)
    assert all(after[0] > before[0] and after[1] < before[1] for before, after in zip(fast, fast[1:], strict=False))
    assert fast[-1][1] < slow[-1][1], "the larger value must be higher up"
    assert all(0 <= x <= 560 and 0 <= y <= 320 for x, y in slow + fast)
    assert {"Return", "per episode", "steps", "slow", "fast", "0", "2M", "4M", "6M"} <= set(texts(tree))


def test_values_lie_where_the_labels_say():
    """The curve's end is at 12, so it must lie at the grid line labelled 12 or in proportion between its neighbours."""
    tree, _ = draw([rising("fast", 2e-6)])
    places = {e.text: float(e.get("y")) - 4 for e in tree.iter(SVG + "text") if e.get("text-anchor") == "end"}
    zero, ten = places["0"], places["10"]
    assert lines(tree)[0][-1][1] == pytest.approx(zero + (ten - zero) * 1.2, abs=0.3)


def test_a_band_lies_around_its_line():
    tree, _ = draw([rising("a", 2e-6, band=1.0), rising("b", 1e-6)])
    (band,) = bands(tree)
    edge = [tuple(map(float, point.split())) for point in band.get("d")[1:-1].split("L")]
    upper, lower = edge[: len(STEPS)], edge[len(STEPS) :][::-1]
    line = lines(tree)[0]
    assert all(above[1] < middle[1] < below[1] for above, middle, below in zip(upper, line, lower, strict=True))


def test_one_wide_spot_of_a_band_does_not_squeeze_the_lines():
    """Fails if the vertical range takes in the widest band whatever it is."""
    curve = rising("a", 1e-6, band=0.5)
    wild = Curve("a", STEPS, curve.values, [-1e6, *curve.low[1:]], [1e6, *curve.high[1:]])
    (line,) = lines(draw([wild])[0])
    assert line[0][1] - line[-1][1] > 150


def test_a_gap_splits_the_line_and_a_lonely_point_is_a_dot():
    values = [1.0] * 60
    values[10] = values[12] = math.nan
    tree, _ = draw([Curve("a", STEPS, values)])
    assert [len(line) for line in lines(tree)] == [10, 47]
    assert len(list(tree.iter(SVG + "circle"))) == 1


def test_short_curves_tell_their_numbers_under_the_mouse():
    tree, _ = draw([Curve("a", [100_000, 200_000], [1, 2.5], [0, 2], [2, 3])])
    titles = [title.text for title in tree.iter(SVG + "title")]
    assert titles == ["a, step 100K: 1 (0 to 2)", "a, step 200K: 2.5 (2 to 3)"]


@pytest.mark.parametrize(
    "curves",
    [
        [],
        [Curve("a", [], [])],
        [Curve("a", [5], [7])],
        [Curve("a", [2**62], [0])],
        [Curve("a", [1, 2], [0, 0])],
        [Curve("a", [1, 2], [math.nan, math.inf])],
        [Curve("a", [1, math.inf], [1e308, -1e308])],
        [Curve("a", [0, 1], [1e149, -1e149])],
        [Curve("a", [0, 1], [5e-324, 0])],
        [Curve("a", [0, 1], [1e15, 1e15 + 0.125])],
        [Curve("a", [1, 2, 3], [1, 2, 3], [0, math.nan, 2], [2, 3, 4])],
    ],
)
def test_odd_curves_still_give_a_picture(curves):
    """No exception, well-formed, and no nan or inf among the coordinates."""
    tree, text = draw(curves)
    assert not re.search(r'[ "ML](nan|-?inf)', text)
    assert "Return" in texts(tree)
    drawable = any(abs(value) < 1e150 for curve in curves for value in curve.values)
    assert drawable or "no data" in texts(tree) or curves


def test_curves_of_unequal_parts_are_refused():
    for arguments in (([1, 2], [1]), ([1], [1], [1], None), ([1], [1], [1, 2], [1, 2])):
        with pytest.raises(ValueError, match="one length"):
            Curve("a", *arguments)


def test_text_is_escaped():
    evil = "<script>alert(1)</script>\"'&\x00\ud800"
    tree, text = draw([rising(evil, 1), Curve(evil, [1], [1])], title=evil, y_label=evil)
    assert "<script" not in text and "\x00" not in text
    assert tree.get("aria-label").startswith("<script>")
    text.encode("utf-8")


def test_escape_keeps_what_is_readable():
    assert escape("a < b & \"c\" 'd'\n\té→") == "a &lt; b &amp; &quot;c&quot; &#x27;d&#x27;\n\té→"
    assert escape("\x1b[0m\x7f") == "\ufffd[0m\ufffd"


def test_in_a_page_colours_come_from_the_page_and_alone_they_are_written_out():
    """Fails if a standalone picture relies on variables, or a page's chart on a white background."""
    curves = [rising("a", 1), rising("b", 2)]
    tree, page = draw(curves)
    alone_tree, alone = draw(curves, standalone=True)
    assert "currentColor" in page and f"var(--curve-2, {PALETTE[1]})" in page and "#ffffff" not in page
    assert "currentColor" not in alone and "var(" not in alone
    assert alone_tree.find(SVG + "rect").get("fill") == "#ffffff"
    assert alone_tree.get("width") and not tree.get("width")
    assert tree.get("viewBox") == "0 0 560 320"
    assert f"--curve-2:{PALETTE[1]};" in palette_css()


def test_more_curves_than_colours_differ_by_dashes():
    tree, _ = draw([rising(f"run {k}", k + 1) for k in range(len(PALETTE) + 1)])
    looks = [(p.get("style"), p.get("stroke-dasharray")) for p in tree.iter(SVG + "path") if p.get("fill") == "none"]
    assert len(set(looks)) == len(looks)
    assert looks[0][0] == looks[-1][0] and looks[-1][1]


def test_a_curve_keeps_its_colour_when_another_is_missing():
    _, text = draw([Curve("b", [1, 2], [1, 2], colour=1)])
    assert "--curve-2" in text and "--curve-1," not in text


def test_the_legend_breaks_into_rows_and_shortens_names():
    tree, _ = draw([rising(f"{k} " + "long " * 20, k + 1) for k in range(4)])
    entries = [element for element in tree.iter(SVG + "text") if "…" in element.text]
    assert len(entries) == 4 and len({entry.get("y") for entry in entries}) > 1
    assert all(len(entry.text) <= 36 for entry in entries)
    assert "only" not in texts(draw([rising("only", 1)])[0]), "one curve needs no legend"


def test_a_lone_point_stands_at_the_end_of_what_led_to_it():
    """Mutation: an axis of half a step to both sides."""
    text = line_chart([Curve("a", [400], [1.0])], "one", "steps", "")
    assert ">0<" in text and ">400<" in text and "399" not in text
    assert ">0<" in line_chart([Curve("a", [0], [1.0])], "one", "steps", "")


@pytest.mark.parametrize("code", [0x061C, 0x200E, 0x200F, 0x202A, 0x202E, 0x2066, 0x2069])
def test_characters_that_turn_the_text_around_are_not_shown(code):
    assert chr(code) not in escape(f"a{chr(code)}b") and escape(f"a{chr(code)}b") == "a\ufffdb"


def test_letters_of_scripts_from_right_to_left_stay():
    assert escape("שלום") == "שלום"
