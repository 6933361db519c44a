"""The documentation site: every page is reachable, and the site builds without a warning where MkDocs is installed."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


def pages(node):
    """All paths in a navigation tree."""
    if isinstance(node, str):
        return [node]
    children = node.values() if isinstance(node, dict) else node
    return [path for child in children for path in pages(child)]


def test_every_page_is_in_the_navigation_once():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = pages(site["nav"])
    written = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(written)


def test_the_site_loads_nothing_from_other_hosts():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert site["theme"]["font"] is False and "extra_javascript" not in site and "extra_css" not in site


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra docs")
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "reference" / "packtrain.algorithms.r2d2.html").is_file()


def test_every_picture_is_in_the_gallery_or_explains_the_architecture():
    """Mutation: a result's picture is added and the gallery is forgotten."""
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]+\]\(images/([^)]+)\)", gallery)
    assert len(shown) == len(set(shown))
    assert sorted([*shown, "walk.svg"]) == sorted(path.name for path in (ROOT / "docs" / "images").iterdir())


def test_each_picture_of_the_gallery_has_one_sentence_with_a_link():
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    for paragraph in re.split(r"^!\[.*\)$", gallery, flags=re.M)[1:]:
        text = paragraph.partition("\n## ")[0].strip()
        assert re.search(r":\s\[[^\]]+\]\([^)]+\)\.$", text, re.S), text
        assert len(re.findall(r"[.!?](?= [A-Z])", text)) == 0, text


def test_the_picture_of_the_walk_names_files_that_exist():
    """Mutation: a file of the walk moves. `python benchmarks/walk_picture.py` draws it."""
    picture = (ROOT / "docs" / "images" / "walk.svg").read_text(encoding="utf-8")
    named = re.findall(r'class="file"[^>]*>([^<]+)<', picture)
    assert len(named) == 7 and all((ROOT / name).exists() for name in named)
