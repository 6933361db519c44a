"""Read a YAML file of settings with PyYAML: sections, lists and scalars, each with its line number.

PyYAML composes the file into nodes and nothing is constructed from them, so nothing in a file is executed. Tags,
anchors and aliases are rejected, and so are files larger than a plausible configuration.
"""

from __future__ import annotations

import re
from typing import Any

from packtrain.convert.gin_file import short
from packtrain.errors import ConfigError, MissingExtraError

DEPTH = 8  # maximum nesting of sections and lists
MOST_CHARACTERS = 2**18  # maximum size of a file
MOST_NODES = 2_000  # maximum number of keys and values of a file

_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **{form: True for word in ("true", "yes", "on") for form in (word, word.title(), word.upper())},
    **{form: False for word in ("false", "no", "off") for form in (word, word.title(), word.upper())},
}
_INT = re.compile(r"[-+]?(?:0|[1-9][\d_]{0,30})", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?=\.?\d)\d{0,30}(?:\.\d{0,30})?(?:[eE][-+]?\d{1,3})?", re.ASCII)


def read_yaml(text: str, source: str) -> dict[str, tuple[Any, int]]:
    """Return the value and the line of each key of a YAML text, sections written as "section.key".

    A section without keys has the value None.

    Args:
      text: the file's text.
      source: the file's name in messages.

    Raises:
      ConfigError: the text is not YAML, or more than a plain file of settings.
      MissingExtraError: PyYAML is not installed.
    """
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"{source}: longer than {MOST_CHARACTERS:,} characters, too long for a configuration")
    root = _compose(text, source)
    found: dict[str, tuple[Any, int]] = {}
    if root is not None:
        if root.id != "mapping":
            raise ConfigError(f"{source}:{_line(root)}: must begin with 'key: value'")
        _read_section(root, "", source, found)
    return found


def _compose(text: str, source: str) -> Any:
    """Return the root node of a text; None if the text is empty."""
    try:
        import yaml
    except ImportError:
        raise MissingExtraError("a .yaml file", "pyyaml", "convert") from None

    class Loader(yaml.SafeLoader):
        """Composes nodes within the limits, and rejects features that settings do not need."""

        def __init__(self, stream: str):
            super().__init__(stream)
            self._depth = self._nodes = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent) or event.anchor is not None or event.tag is not None:
                raise ConfigError(f"{source}:{line}: tags, anchors and aliases are not supported")
            self._depth, self._nodes = self._depth + 1, self._nodes + 1
            if self._depth > DEPTH + 1:
                raise ConfigError(f"{source}:{line}: nested too deeply to be a configuration")
            if self._nodes > MOST_NODES:
                raise ConfigError(
                    f"{source}:{line}: more than {MOST_NODES:,} keys and values, too many for a configuration"
                )
            node = super().compose_node(parent, index)
            self._depth -= 1
            return node

    try:
        return Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}" if mark is not None else ""
        problem = str(error.problem)
        reason = f"{error.context}, {problem}" if problem.startswith("but ") else problem
        raise ConfigError(f"{source}{place}: not YAML: {reason}") from None
    except yaml.reader.ReaderError as error:
        line = 1 + text.count("\n", 0, error.position)
        raise ConfigError(f"{source}:{line}: the character {short(chr(error.character))} is not allowed") from None


def _line(node: Any) -> int:
    return node.start_mark.line + 1


def _read_section(section: Any, above: str, source: str, found: dict[str, tuple[Any, int]]) -> None:
    """Add the keys of a section and of its subsections to the result."""
    keys = set()
    for key, value in section.value:
        line = _line(key)
        if key.id != "scalar" or not re.fullmatch(r"\w+", key.value, re.ASCII):
            found_text = short(key.value) if key.id == "scalar" else f"a {key.id}"
            raise ConfigError(f"{source}:{line}: a key must be a word of letters, digits and _, not {found_text}")
        if key.value in keys:
            raise ConfigError(f"{source}:{line}: {short(above + key.value)} occurs twice")
        keys.add(key.value)
        if value.id == "mapping" and value.value:
            _read_section(value, f"{above}{key.value}.", source, found)
        else:
            found[above + key.value] = _value(value, source), line


def _value(node: Any, source: str) -> Any:
    """Return the value of a node that is not a section; an empty section has the value None."""
    if node.id == "sequence":
        return [_value(item, source) for item in node.value]
    if node.id == "mapping":
        if node.value:
            raise ConfigError(f"{source}:{_line(node)}: sections in lists are not supported")
        return None
    return _scalar(node.value) if node.style is None else node.value  # a style: in quotes, or of several lines


def _scalar(text: str) -> Any:
    """Return a word, a number or a text without quotes.

    Unlike YAML 1.1, 1e-4 is a number, and 016, 1:30 and 2020-01-01 are texts.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if re.search(r"[.eE]", text) and _FLOAT.fullmatch(text):
        return float(text)
    return text
