"""The part of YAML that plain configuration files need, read strictly: sections, lists, numbers, words, texts.

Nothing in a file is run. What is not understood, tags, anchors, texts of several lines, is an error with its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from packtrain.errors import ConfigError

DEPTH = 8  # of sections and lists in one another


@dataclass(frozen=True)
class _Line:
    number: int
    indent: int
    text: str  # without indent and comment


_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **{form: True for word in ("true", "yes", "on") for form in (word, word.title(), word.upper())},
    **{form: False for word in ("false", "no", "off") for form in (word, word.title(), word.upper())},
}
_KEY = re.compile(r"""(?:"(\w+)"|'(\w+)'|(\w+))\s*:(?:\s+(.*))?""", re.ASCII)
_INT = re.compile(r"[-+]?(?:0|[1-9][\d_]{0,30})", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?=\.?\d)\d{0,30}(?:\.\d{0,30})?(?:[eE][-+]?\d{1,3})?", re.ASCII)
_ESCAPED = re.compile(r'"((?:[^"\\]|\\["\\/])*)"')
_QUOTED = re.compile(r"'((?:[^']|'')*)'")
_NOT_READ = "tags, anchors, aliases and texts of several lines are not read"


class PlainYaml:
    """The part of YAML that these files need: sections by indentation, scalars, lists, and both within one line."""

    def __init__(self, text: str, source: str):
        self._source = source
        self._lines = [line for number, one in enumerate(text.split("\n"), 1) if (line := self._line(number, one))]
        self._at = 0  # the next of them
        self._found: dict[str, tuple[Any, int]] = {}
        self._sections: set[str] = set()  # places that have keys below them

    def read(self) -> dict[str, tuple[Any, int]]:
        """Place of each key → value and line; sections without a key too, with None."""
        if self._lines and self._lines[0].text == "---":
            self._at = 1
        if line := self._next():
            self._map(line.indent, "", 1)
        if line := self._next():
            raise self._error(line.number, "less indented than the first key")
        return self._found

    def _error(self, number: int, reason: str) -> ConfigError:
        return ConfigError(f"{self._source}:{number}: {reason}")

    def _line(self, number: int, text: str) -> _Line | None:
        """A line without its comment; None if nothing is left."""
        quote, before, escaped = "", "", False
        for index, char in enumerate(text):
            if quote:
                quote = "" if char == quote and not escaped else quote
                escaped = quote == '"' and char == "\\" and not escaped
            elif char in "'\"" and before in ("", *":,[{-'"):  # elsewhere it is a part of a word
                quote = char
            elif char == "#" and text[index - 1 : index] in ("", " ", "\t"):
                text = text[:index]
                break
            before = before if char in " \t" else char
        text = text.rstrip(" \t\r")
        content = text.lstrip(" ")
        if content.startswith("\t"):
            raise self._error(number, "indented with a tab; YAML wants spaces")
        return _Line(number, len(text) - len(content), content) if content else None

    def _next(self) -> _Line | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    def _map(self, indent: int, above: str, depth: int) -> None:
        """The keys of a section, all of them indented alike."""
        if depth > DEPTH:
            raise self._error(self._lines[self._at].number, "nested too deeply to be a configuration")
        while (line := self._next()) and line.indent >= indent:
            if line.indent > indent:
                raise self._error(line.number, "indented, and the line above it begins no section")
            match = _KEY.fullmatch(line.text)
            if match is None:
                raise self._error(line.number, f"{short(line.text)} is no 'key: value'; {_NOT_READ}")
            self._at += 1
            place = above + next(filter(None, match.groups()[:3]))
            if place in self._found or place in self._sections:
                raise self._error(line.number, f"{short(place)} is there twice")
            self._after_key(line, place, match[4] or "", depth)

    def _after_key(self, line: _Line, place: str, text: str, depth: int) -> None:
        """What a key stands for: a value on its line, or a list or a section below it."""
        below = self._next()
        if text:
            self._put(place, _Inline(text, self._source, line.number).read(), line.number)
        elif below is not None and below.indent >= line.indent and re.match(r"-(\s|$)", below.text):
            self._note(place, self._list(below.indent), line.number)
        elif below is not None and below.indent > line.indent:
            self._map(below.indent, f"{place}.", depth + 1)
        else:
            self._note(place, None, line.number)

    def _note(self, place: str, value: Any, number: int) -> None:
        self._found[place] = value, number
        above = place.rpartition(".")[0]
        while above and above not in self._sections:
            self._sections.add(above)
            above = above.rpartition(".")[0]

    def _put(self, place: str, value: Any, number: int) -> None:
        """A value; a section within one line, key by key."""
        if not isinstance(value, dict) or not value:
            self._note(place, None if value == {} else value, number)
            return
        for name, inner in value.items():
            self._put(f"{place}.{name}", inner, number)

    def _list(self, indent: int) -> list[Any]:
        """The items of a list, a line each."""
        items: list[Any] = []
        while (line := self._next()) and line.indent == indent and (match := re.fullmatch(r"-(?:\s+(.*))?", line.text)):
            items.append(_Inline(match[1] or "", self._source, line.number).read())
            self._at += 1
        return items


class _Inline:
    """A value within one line: a scalar, [a list] or {a section}."""

    def __init__(self, text: str, source: str, number: int):
        self._text, self._at = text, 0
        self._source, self._number = source, number

    def read(self) -> Any:
        """All of the text as one value."""
        value = self._value(0)
        if self._at < len(self._text):
            raise self._error(f"{short(self._text[self._at :])} stands behind a value")
        return value

    def _error(self, reason: str) -> ConfigError:
        return ConfigError(f"{self._source}:{self._number}: {reason}")

    def _skip(self) -> str:
        """The next character that is no space; empty at the end."""
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> Any:
        char = self._skip()
        if depth > DEPTH:
            raise self._error("nested too deeply to be a configuration")
        if char == "[":
            return self._items("]", lambda: self._value(depth + 1))
        if char == "{":
            pairs = self._items("}", lambda: self._pair(depth + 1))
            if len(dict(pairs)) < len(pairs):
                raise self._error(f"{short(self._text)} has a key twice")
            return dict(pairs)
        value = self._quoted() if char and char in "'\"" else self._plain(depth)
        self._skip()
        return value

    def _items(self, end: str, item: Callable[[], Any]) -> list[Any]:
        """What stands between brackets, with commas in between."""
        self._at += 1
        items: list[Any] = []
        while self._skip() != end:
            items.append(item())
            if self._skip() not in (",", end):
                raise self._error(f"{short(self._text)} does not end with {end!r} on its line")
            self._at += self._text[self._at] == ","
        self._at += 1
        self._skip()
        return items

    def _pair(self, depth: int) -> tuple[str, Any]:
        self._skip()
        match = re.compile(r"(\w+)\s*:(?=[\s,}])", re.ASCII).match(self._text, self._at)
        if match is None:
            raise self._error(f"{short(self._text[self._at :])} is no 'key: value'")
        self._at = match.end()
        return match[1], self._value(depth)

    def _quoted(self) -> str:
        pattern = _QUOTED if self._text[self._at] == "'" else _ESCAPED
        match = pattern.match(self._text, self._at)
        if match is None:
            raise self._error(f"{short(self._text[self._at :])} is no text in quotes that ends on its line")
        self._at = match.end()
        return match[1].replace("''", "'") if pattern is _QUOTED else re.sub(r"\\(.)", r"\1", match[1])

    def _plain(self, depth: int) -> Any:
        """A word, a number or a text without quotes; in brackets up to the next comma or bracket."""
        match = re.compile(r"[^,\[\]{}]*" if depth else r".*").match(self._text, self._at)
        assert match is not None
        text = match[0].strip()
        if text[:1] in [*"!&*|>%@`?#"] or re.match(r"-(\s|$)", text) or re.search(r":(\s|$)", text):
            raise self._error(f"{short(text)} is no value; {_NOT_READ}")
        self._at = match.end()
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return int(text.replace("_", ""))
        if re.search(r"[.eE]", text) and _FLOAT.fullmatch(text):
            return float(text)
        return text


def short(value: Any) -> str:
    """A value as it is shown in an error."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
