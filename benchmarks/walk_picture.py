"""Draw the walk of one transition: docs/images/walk.svg.

python benchmarks/walk_picture.py
"""

import math
from pathlib import Path

STOPS = (
    ("environments", "packtrain/envs/stream.py", "actions [B] → row"),
    ("actor", "packtrain/acting/actor.py", "row → policy → actions"),
    ("memory", "packtrain/memory/", "rows → samples"),
    ("learner", "packtrain/algorithms/", "sample → loss → step"),
    ("weights", "packtrain/runtime/weights.py", "numbered versions"),
)
WIDTH, HEIGHT, RADIUS_X, RADIUS_Y, BOX = 880, 440, 300, 150, (230, 78)
STYLE = """
  .page { fill: #ffffff }
  .box { fill: #f4f8f8; stroke: #00796b; stroke-width: 1.5 }
  .title { font-weight: 600; fill: #17262b }
  .file { fill: #00695c; font-family: ui-monospace, monospace; font-size: 12px }
  .what { fill: #4a5a60; font-size: 13px }
  .way { stroke: #00796b; stroke-width: 2; fill: none }
  .tip { fill: #00796b }
  text { font-family: system-ui, sans-serif; font-size: 16px; text-anchor: middle }
  @media (prefers-color-scheme: dark) {
    .page { fill: #12191c }
    .box { fill: #1c282c; stroke: #4db6ac }
    .title { fill: #e4eef0 }
    .file { fill: #80cbc4 }
    .what { fill: #a9bcc2 }
    .way { stroke: #4db6ac }
    .tip { fill: #4db6ac }
  }
"""


def place(stop: float) -> tuple[float, float]:
    """Return the centre of a stop on the ellipse; clockwise from the top."""
    angle = 2 * math.pi * stop / len(STOPS) - math.pi / 2
    return WIDTH / 2 + RADIUS_X * math.cos(angle), HEIGHT / 2 + RADIUS_Y * math.sin(angle)


def arrow(stop: int) -> str:
    """Return the arrow from a stop to the next, between their boxes."""
    inside = [
        step / 100
        for step in range(101)
        if all(
            abs(place(stop + step / 100)[axis] - place(end)[axis]) > BOX[axis] / 2 + 8
            for end in (stop, stop + 1)
            for axis in (0,)
        )
        or all(abs(place(stop + step / 100)[1] - place(end)[1]) > BOX[1] / 2 + 8 for end in (stop, stop + 1))
    ]
    points = [place(stop + part) for part in inside]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="way" marker-end="url(#tip)" points="{line}"/>'


def picture() -> str:
    """Return the picture as SVG."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="One transition: environments, actor, memory, learner, weights, and back to the actor">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0,0 L10,5 L0,10 z"/></marker></defs>',
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
    ]
    lines += [arrow(stop) for stop in range(len(STOPS))]
    for number, (title, file, what) in enumerate(STOPS):
        x, y = place(number)
        lines.append(
            f'<rect class="box" x="{x - BOX[0] / 2:.1f}" y="{y - BOX[1] / 2:.1f}" width="{BOX[0]}" '
            f'height="{BOX[1]}" rx="10"/>'
            f'<text class="title" x="{x:.1f}" y="{y - 14:.1f}">{number + 1}. {title}</text>'
            f'<text class="file" x="{x:.1f}" y="{y + 6:.1f}">{file}</text>'
            f'<text class="what" x="{x:.1f}" y="{y + 26:.1f}">{what}</text>'
        )
    middle = (
        ("runtime", "packtrain/runtime/loops/", "decides what is due: Act or Learn"),
        ("interfaces", "packtrain/interfaces/", "the only contract between the boxes"),
    )
    for number, (title, file, what) in enumerate(middle):
        y = HEIGHT / 2 - 32 + 76 * number
        lines.append(
            f'<text class="title" x="{WIDTH / 2}" y="{y}">{title}</text>'
            f'<text class="file" x="{WIDTH / 2}" y="{y + 18}">{file}</text>'
            f'<text class="what" x="{WIDTH / 2}" y="{y + 36}">{what}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    Path("docs/images/walk.svg").write_text(picture(), encoding="utf-8")
