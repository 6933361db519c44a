"""Draw docstrings, help texts and error messages at random, for a review by a reader who does not know the code.

    python benchmarks/draw_texts.py --seed 0

prints 40 docstrings (first paragraphs), 40 help texts (knob comments and flags) and 20 error messages. The reviewer
decides for each whether it is understood at first reading.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "packtrain"
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef)


def docstrings() -> list[str]:
    """Return the first paragraph of every docstring, with its place."""
    found = []
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, DEFINITIONS) and (text := ast.get_docstring(node)):
                name = getattr(node, "name", "module")
                first = " ".join(text.split("\n\n")[0].split())
                found.append(f"{path.relative_to(ROOT)} {name}: {first}")
    return found


def help_texts() -> list[str]:
    """Return the comments of knobs in configurations, and the help texts of command line flags."""
    found = set()
    for file in PACKAGE.glob("configs/**/*.gin"):
        for line in file.read_text(encoding="utf-8").splitlines():
            if match := re.match(r"(\w+) = [^#]+# ([^\[].*)", line):
                found.add(f"--{match[1]}: {match[2]}")
    for _, tree in modules("cli"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                texts = [message(word.value) for word in node.keywords if word.arg == "help"]
                flags = [one.value for one in node.args if isinstance(one, ast.Constant)]
                found.update(f"{' '.join(map(str, flags))}: {text}" for text in texts if text)
    return sorted(found)


def errors() -> list[str]:
    """Return the messages of raised exceptions, with their expressions in braces."""
    found = []
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = message(node.exc.args[0])
                if " " in text:
                    found.append(f"{path.relative_to(ROOT)}: {text}")
    return found


def modules(folder: str = "") -> list[tuple[Path, ast.Module]]:
    """Return the parsed files of the package, or of one of its folders."""
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted((PACKAGE / folder).rglob("*.py"))]


def message(node: ast.expr) -> str:
    """Return a text or f-string as source text without quotes; empty for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
            for part in node.values
        )
    return ""


def main() -> None:
    """Print the samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw (default: 0)")
    rng = random.Random(parser.parse_args().seed)
    for title, texts, count in (
        ("Docstrings", docstrings(), 40),
        ("Help texts", help_texts(), 40),
        ("Error messages", errors(), 20),
    ):
        print(f"\n{title} ({count} of {len(texts)})")
        for text in rng.sample(texts, min(count, len(texts))):
            print(f"- {text}")


if __name__ == "__main__":
    main()
