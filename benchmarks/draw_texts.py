"""Sample docstrings, help texts, errors and comments, for a review by a reader who does not know the code.

    python benchmarks/draw_texts.py --seed 0

prints 40 docstrings (first paragraphs), 40 help texts (knob comments and flags), 20 error messages and 40 comments,
each with its file and line. The reviewer decides for each whether it is understood at first reading.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "packtrain"
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef)


def docstrings() -> list[str]:
    """Return the first paragraph of every docstring."""
    found = []
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, DEFINITIONS) and (text := ast.get_docstring(node)):
                name = getattr(node, "name", "module")
                first = " ".join(text.split("\n\n")[0].split())
                line = node.body[0].lineno
                found.append(f"{path.relative_to(ROOT)}:{line}: {name}: {first}")
    return found


def help_texts() -> list[str]:
    """Return the comments of knobs in configurations, and the help texts of command line flags."""
    found: dict[str, str] = {}  # text → where it is first
    for file in sorted(PACKAGE.glob("configs/**/*.gin")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if match := re.match(r"(\w+) = [^#]+# ([^\[].*)", line):
                found.setdefault(f"--{match[1]}: {match[2]}", f"{file.relative_to(ROOT)}:{number}")
    for path, tree in modules("cli"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                texts = [message(word.value) for word in node.keywords if word.arg == "help"]
                flags = [one.value for one in node.args if isinstance(one, ast.Constant)]
                for text in filter(None, texts):
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    found.setdefault(f"{' '.join(map(str, flags))}: {text}", place)
    return sorted(f"{place}: {text}" for text, place in found.items())


def errors() -> list[str]:
    """Return the messages of raised exceptions, with their expressions in braces."""
    found = []
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = message(node.exc.args[0])
                if " " in text:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text}")
    return found


def comments() -> list[str]:
    """Return the comments of the package, with the code before them on the same line."""
    found = []
    for path, _ in modules():
        last, block = (-1, -1), ""  # line and column of the latest comment
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type != tokenize.COMMENT or re.match("# (type|noqa|fmt|mypy)", token.string):
                continue
            code = token.line[: token.start[1]].strip()
            if not code and token.start == (last[0] + 1, last[1]):
                block = f"{found.pop()} {token.string[2:]}"
            else:
                block = f"{path.relative_to(ROOT)}:{token.start[0]}: {code}  {token.string}"
            found.append(block)
            last = token.start
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
        ("Comments", comments(), 40),
    ):
        print(f"\n{title} ({count} of {len(texts)})")
        for text in rng.sample(texts, min(count, len(texts))):
            print(f"- {text}")


if __name__ == "__main__":
    main()
