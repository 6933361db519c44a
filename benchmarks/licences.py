"""The licences of packtrain's installed dependencies, extras included, as a table; exit code 1 if one is not known.

`make audit` runs it. What counts is what packages say about themselves; nothing is downloaded.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata

PERMISSIVE = ("MIT", "BSD", "Apache", "ISC", "PSF", "Python Software Foundation", "HPND", "Unlicense", "0BSD", "Zlib")
WEAK_COPYLEFT = ("MPL", "Mozilla", "LGPL")


def names(root: str = "packtrain") -> list[str]:
    """Return the installed packages that `root` needs, extras included, sorted."""
    found, waiting = set(), [root]
    while waiting:
        name = waiting.pop()
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        if name != root:
            found.add(name)
        for line in required:
            if name != root and "extra ==" in line:
                continue
            other = re.split(r"[\s;\[<>=!~(]", line, maxsplit=1)[0].lower().replace("_", "-")
            if other not in found and other != root:
                waiting.append(other)
    return sorted(found)


def licence(name: str) -> str:
    """Return what a package says about its licence, in a few words; "" if nothing."""
    about = metadata.metadata(name)
    classifiers = [value.rpartition(" :: ")[2] for value in about.get_all("Classifier", []) if value[:7] == "License"]
    text = about.get("License-Expression") or ", ".join(classifiers) or about.get("License") or ""
    return " ".join(text.split())[:60]


def kind(text: str) -> str:
    """Return "permissive", "weak copyleft", "copyleft" or "unknown"."""
    for words, found in ((WEAK_COPYLEFT, "weak copyleft"), (("GPL",), "copyleft"), (PERMISSIVE, "permissive")):
        if any(word.lower() in text.lower() for word in words):
            return found
    return "unknown"


def main() -> int:
    """Print the table."""
    unknown = []
    for name in names():
        text = licence(name)
        print(f"{name:<28} {metadata.version(name):<16} {kind(text):<14} {text}")
        if kind(text) == "unknown":
            unknown.append(name)
    if unknown:
        print(f"not known: {', '.join(unknown)}; look at their licence files", file=sys.stderr)
    return int(bool(unknown))


if __name__ == "__main__":
    sys.exit(main())
