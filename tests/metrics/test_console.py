"""What a person sees while a run goes on."""

import io

import pytest

pytest.importorskip("rich")


def test_a_folders_name_is_no_markup(monkeypatch):
    """Mutation: a title given as text, which rich reads for [tags]."""
    from rich import get_console

    from packtrain.metrics.console import RichConsole

    monkeypatch.setattr(get_console(), "file", io.StringIO())
    console = RichConsole("runs/[/red]x", 100)
    console.show({"kind": "train", "step": 3, "wall_s": 1.0})
    console.close()
    assert "[/red]x" in get_console().file.getvalue()
