"""Hooks of MkDocs: links that leave docs/ become plain text, and reference pages are generated from the code."""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = {
    "Python API": ["packtrain.api", "packtrain.prediction", "packtrain.export"],
    "Contracts": ["packtrain.interfaces", "packtrain.types", "packtrain.trees"],
    "Algorithms": "packtrain/algorithms",
    "Equations": "packtrain/equations",
    "Memory": "packtrain/memory",
    "Acting": "packtrain/acting",
    "Planning": "packtrain/planning",
    "Networks": "packtrain/networks",
    "Environments": "packtrain/envs",
    "Testing": "packtrain/testing",
}
"""Sections of the reference: module names, or the folder whose modules are listed."""

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")

SHAPE = re.compile(r"\[(?=[^\]\n]*\]\s?[\[(])")  # "[T, B] (...)" and "x[i][j]" would be links in Markdown


class InlineComments(griffe.Extension):
    """Takes the comment behind a field for its docstring, and escapes brackets that Markdown would take for links."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Complete and rewrite the docstring of an object."""
        if obj.docstring is None and obj.is_attribute and obj.lineno is not None:
            comment = obj.lines_collection[obj.filepath][obj.lineno - 1].partition("  # ")[2]
            if comment:
                obj.docstring = griffe.Docstring(comment, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = SHAPE.sub(r"\\[", obj.docstring.value)


def modules(source: list[str] | str) -> list[str]:
    """Return the module names of a section."""
    if isinstance(source, list):
        return source
    files = sorted((ROOT / source).rglob("*.py"))
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if file.stem != "__init__"]


def reference_pages() -> dict[str, str]:
    """Return the Markdown of each reference page by its path below docs/."""
    pages = {}
    index = ["# Reference", "", "Generated from the docstrings of the package.", ""]
    for title, source in REFERENCE.items():
        index += [f"## {title}", "", "| module | contents |", "| --- | --- |"]
        for name in modules(source):
            pages[f"reference/{name}.md"] = f"# {name}\n\n::: {name}\n    options:\n      show_root_heading: false\n"
            text = (ROOT / (name.replace(".", "/") + ".py")).read_text(encoding="utf-8")
            first = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
            index.append(f"| [`{name.removeprefix('packtrain.')}`]({name}.md) | {first} |")
        index.append("")
    pages["reference/index.md"] = "\n".join(index)
    return pages


def on_files(files: Files, config) -> Files:
    """Add the reference pages."""
    for path, text in reference_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_config(config):
    """Add the reference to the navigation."""
    config["nav"].append({"Reference": "reference/index.md"})
    return config


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """Replace links to files outside docs/, and to folders and data, by their text."""
    here = posixpath.dirname(page.file.src_uri)

    def shown(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        path = target.partition("#")[0]
        if not path or "://" in target or target.startswith("mailto:"):
            return match[0]
        found = files.get_file_from_path(posixpath.normpath(posixpath.join(here, path)))
        return match[0] if found is not None else text

    parts = re.split(r"(```.*?```)", markdown, flags=re.S)
    return "".join(part if part.startswith("```") else LINK.sub(shown, part) for part in parts)
