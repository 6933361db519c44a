"""Files of a folder from other people: no link is followed, and only ordinary files of limited size are read."""

import os
import stat

import pytest

from packtrain import files
from packtrain.errors import RunFolderError


@pytest.fixture
def root(tmp_path):
    (tmp_path / "run/checkpoints/5").mkdir(parents=True)
    (tmp_path / "run/checkpoints/5/state.json").write_bytes(b"{}")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept.txt").write_bytes(b"kept")
    return tmp_path / "run"


@pytest.fixture
def outside(root):
    yield root.parent / "outside"
    assert (root.parent / "outside/kept.txt").read_bytes() == b"kept"
    assert os.listdir(root.parent / "outside") == ["kept.txt"]


@pytest.mark.parametrize("mask, mode", [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_written_files_have_the_permissions_the_umask_leaves(tmp_path, mask, mode):
    (tmp_path / "run").mkdir()
    before = os.umask(mask)
    try:
        files.write_whole(tmp_path / "a.txt", b"x")
        files.write_inside(tmp_path / "run", "b.txt", b"x")
        files.open_inside(tmp_path / "run", "c.txt", "wb").close()
    finally:
        os.umask(before)
    written = [tmp_path / "a.txt", tmp_path / "run/b.txt", tmp_path / "run/c.txt"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in written] == [mode] * 3


@pytest.mark.parametrize("mode", ["rb", "r+b", "wb", "ab", "a+b"])
def test_a_linked_file_is_refused_in_every_mode(root, outside, mode):
    (root / "log.txt").symlink_to(outside / "kept.txt")
    with pytest.raises(RunFolderError, match="log.txt is a symbolic link"):
        files.open_inside(root, "log.txt", mode)


@pytest.mark.parametrize("mode", ["wb", "ab", "xb"])
def test_a_dangling_link_makes_no_file_elsewhere(root, outside, mode):
    (root / "log.txt").symlink_to(outside / "new.txt")
    with pytest.raises(RunFolderError, match="symbolic link"):
        files.open_inside(root, "log.txt", mode)


def test_a_linked_folder_on_the_way_is_refused(root, outside):
    (root / "videos").symlink_to(outside)
    for act in (
        lambda: files.open_inside(root, "videos/kept.txt", "wb"),
        lambda: files.read_inside(root, "videos/kept.txt"),
        lambda: files.write_inside(root, "videos/kept.txt", b"lost"),
        lambda: files.remove_inside(root, "videos/kept.txt"),
        lambda: files.remove_inside(root, "videos"),
        lambda: files.list_inside(root, "videos"),
        lambda: files.refuse_links(root, "videos"),
    ):
        with pytest.raises(RunFolderError, match="videos is a symbolic link"):
            act()


def test_a_link_to_the_folder_itself_is_followed(root):
    link = root.parent / "latest"
    link.symlink_to(root)
    assert files.read_inside(link, "checkpoints/5/state.json") == b"{}"
    assert files.list_inside(link, "checkpoints") == ["5"]


@pytest.mark.parametrize("name", ["../outside/kept.txt", "/etc/passwd", "", "a\0b", "checkpoints/../../outside"])
def test_a_name_that_leads_outside_is_refused(root, outside, name):
    with pytest.raises(RunFolderError, match="is not a path inside"):
        files.read_inside(root, name)


def test_removing_a_folder_deletes_a_link_in_it_and_not_what_it_points_to(root, outside):
    (root / "checkpoints/5/far").symlink_to(outside)
    files.remove_inside(root, "checkpoints/5")
    files.remove_inside(root, "checkpoints/5")  # absent: nothing to do
    assert files.list_inside(root, "checkpoints") == []


def test_pipes_devices_and_folders_are_not_read_and_do_not_block(root):
    os.mkfifo(root / "pipe")
    for name in ("pipe", "checkpoints"):
        for mode in ("rb", "ab"):
            with pytest.raises(RunFolderError, match="not an ordinary file"):
                files.open_inside(root, name, mode)
        with pytest.raises(RunFolderError, match="not an ordinary file"):
            files.write_inside(root, name, b"")
    with pytest.raises(OSError, match="not an ordinary file"):
        files.read_bounded(root / "pipe")
    with pytest.raises(OSError, match="not an ordinary file"):
        files.read_bounded(root.parent / "/dev/zero")


def test_a_file_of_more_bytes_than_allowed_is_not_read(root):
    (root / "large").write_bytes(b"12345")
    assert files.read_inside(root, "large", 5) == b"12345"
    with pytest.raises(OSError, match="has 5 bytes, and at most 4 are read"):
        files.read_inside(root, "large", 4)


def test_a_file_that_is_almost_all_holes_is_refused(root):
    with open(root / "sparse", "wb") as file:
        file.truncate(2**35)
    with pytest.raises(OSError, match="almost entirely of holes"):
        files.read_inside(root, "sparse", 2**40)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(root, monkeypatch):
    files.write_inside(root, "eval.json", b"old")

    def refuse(*_, **__):
        raise OSError("full")

    monkeypatch.setattr(os, "fsync", refuse)
    for write in (files.write_inside, lambda folder, name, data: files.write_whole(folder / name, data)):
        with pytest.raises(OSError, match="full"):
            write(root, "eval.json", b"new")
    assert (root / "eval.json").read_bytes() == b"old"
    assert sorted(os.listdir(root)) == ["checkpoints", "eval.json"]


@pytest.mark.parametrize("name", ["eval.json", ".lock", "videos", "checkpoints/6", "checkpoints/best.json"])
def test_without_names_every_link_of_two_levels_is_found(root, outside, name):
    files.refuse_links(root)
    files.refuse_links(root / "absent")
    (root / name).symlink_to(outside)
    with pytest.raises(RunFolderError, match=f"{name} is a symbolic link"):
        files.refuse_links(root)
