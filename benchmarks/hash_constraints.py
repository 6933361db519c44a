"""Write constraints.hashed.txt: the tested versions of constraints.txt, each with the SHA-256 of its file.

The file is the one that pip prefers for this Python and platform: the most specific wheel, else the source archive. Its
hash is read from the pages of a package index (PEP 503), or computed where a folder has the file. Names of indices are
not written: the hashes are what counts, wherever the files come from.

    python benchmarks/hash_constraints.py INDEX [FOLDER]     # INDEX: https://…/simple
"""

from __future__ import annotations

import hashlib
import html
import re
import sys
import urllib.request
from pathlib import Path

from packaging.tags import sys_tags
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parent.parent
SOURCE, TARGET = ROOT / "constraints.txt", ROOT / "constraints.hashed.txt"
HEAD = """\
# The versions of constraints.txt with the SHA-256 of their files for Python 3.11 on Linux x86-64, torch for the CPU.
# Written by `make hashes`. To install exactly these files, and packtrain beside them:
#     pip install --no-deps --require-hashes -r constraints.hashed.txt && pip install --no-deps -e .
"""
TAGS = {tag: place for place, tag in enumerate(sys_tags())}


def rank(file: str, version: Version) -> tuple[int, int] | None:
    """Return how a file is preferred, smaller first; None if it is of another version or does not fit here."""
    try:
        if file.endswith(".whl"):
            _, found, _, tags = parse_wheel_filename(file)
            places = [TAGS[tag] for tag in tags if tag in TAGS]
            return (0, min(places)) if found.public == str(version) and places else None
        _, found = parse_sdist_filename(file)
        return (1, 0) if found == version else None
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


def choose(files: dict[str, str], version: str) -> str | None:
    """Return the hash of the preferred file among {name: hash}; None if none fits."""
    ranked = {name: place for name in files if (place := rank(name, Version(version))) is not None}
    return files[min(ranked, key=ranked.__getitem__)] if ranked else None


def files_of(page: str) -> dict[str, str]:
    """Return the files that a page of an index lists with their hashes."""
    found = re.findall(r'href="([^"#]+)#sha256=([0-9a-f]{64})"', page)
    return {html.unescape(url).rpartition("/")[2]: digest for url, digest in found}


def main(index: str, folder: str | None = None) -> int:
    """Write the file."""
    lines = []
    for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", SOURCE.read_text(encoding="utf-8"), re.MULTILINE):
        plain = re.sub(r"[-_.]+", "-", name).lower()
        here = [] if folder is None else Path(folder).glob(f"{plain.replace('-', '_')}-*")
        digest = choose({file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in here}, version)
        if digest is None:
            with urllib.request.urlopen(f"{index.rstrip('/')}/{plain}/", timeout=60) as page:
                digest = choose(files_of(page.read().decode()), version)
        if digest is None:
            print(f"no file of {name} {version} fits this Python", file=sys.stderr)
            return 1
        lines.append(f"{name}=={version} --hash=sha256:{digest}\n")
    TARGET.write_text(HEAD + "".join(sorted(lines, key=str.lower)), encoding="utf-8")
    print(f"{TARGET.name}: {len(lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
