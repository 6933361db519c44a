"""Put the score card of `packtrain exam` into the docs: the picture, the data and the table of docs/exam.md.

python benchmarks/exam_docs.py runs/exam/exam.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from packtrain.studies import exam_card

BEGIN, END = "<!-- card -->", "<!-- end of card -->"


def main(data: Path) -> None:
    """Write docs/images/exam.svg, docs/exam.json and the table between the two marks of docs/exam.md."""
    card = json.loads(data.read_text(encoding="utf-8"))
    Path("docs/images/exam.svg").write_text(exam_card.picture(card["scores"], card["caption"]), encoding="utf-8")
    Path("docs/exam.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    page = Path("docs/exam.md")
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    table = exam_card.markdown(card["scores"])
    versions = card["versions"]
    note = (
        f"{card['caption'].capitalize()}, Python {versions['python']}; `packtrain exam`, "
        f"{card['cpu_seconds'] / 60:.1f} minutes of processor time in all."
    )
    page.write_text(
        f"{head}{BEGIN}\n\n{table}\n\n{note} Data: [exam.json](exam.json).\n\n{END}{tail}", encoding="utf-8"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
