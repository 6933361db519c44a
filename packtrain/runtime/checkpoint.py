"""Checkpoints: directories of safetensors and JSON files; only complete and verified ones are loaded.

    checkpoints/STEP/manifest.json      schema, step, and size and SHA-256 of every other file
    checkpoints/STEP/NAME.safetensors   the arrays of one part of the state
    checkpoints/STEP/state.json         everything else, the arrays' places included
    checkpoints/best.json               which step scored best

    checkpoints/STEP.damaged/           one that was found damaged and moved aside

A checkpoint is written beside its place, synced, and renamed. Nothing that is read can run code.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from packtrain.errors import CheckpointError, DamagedError, RunFolderError, warn
from packtrain.files import read_inside, sync, sync_folder, write_whole

SCHEMA = 1
KEPT = 3
MOST_DAMAGED = 3  # maximum number of damaged checkpoints kept for inspection
MOST_JSON = 2**30  # maximum size of a state without its arrays, or of a manifest
log = logging.getLogger("packtrain")


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint. If that fails, it is removed, and an existing one of the same step is kept.

    Args:
      folder: RUN/checkpoints.
      step: names it.
      state: a tree of tensors, arrays and JSON values; each top-level part becomes a file of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final, temporary = folder / str(step), folder / f".writing-{step}-{os.getpid()}"
    old = folder / f".old-{step}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        for name, data in _files_of(step, state).items():
            _write_synced(temporary / name, data)
        sync_folder(temporary)
        # the same step exists: a run resumed and stopped before its next update, or the old one is damaged
        if final.exists():
            os.rename(final, old)
        os.rename(temporary, final)
    except BaseException:
        if old.exists() and not final.exists():
            os.rename(old, final)
        shutil.rmtree(temporary, ignore_errors=True)  # delete it now: it may be what fills the disk
        raise
    shutil.rmtree(old, ignore_errors=True)
    sync_folder(folder)
    return final


def _files_of(step: int, state: dict[str, Any]) -> dict[str, bytes]:
    """Return the content of every file of a checkpoint by its name, the manifest last."""
    files: dict[str, bytes] = {}
    plain: dict[str, Any] = {}
    for part, content in state.items():
        arrays: dict[str, torch.Tensor] = {}
        plain[part] = _strip(content, part, "", arrays)
        if arrays:
            files[f"{part}.safetensors"] = save_tensors(arrays)
    files["state.json"] = json.dumps(plain).encode()
    manifest = {
        "schema": SCHEMA,
        "step": step,
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()
        },
    }
    files["manifest.json"] = json.dumps(manifest, indent=1, sort_keys=True).encode()
    return files


def load(path: Path) -> dict[str, Any]:
    """Load one checkpoint, whose files are verified before they are parsed; CheckpointError if it is damaged."""
    contents = {name: _read_verified(path / name, entry) for name, entry in _listed(path).items()}
    try:
        plain = json.loads(contents["state.json"])
        arrays = {name: load_tensors(data) for name, data in contents.items() if name.endswith(".safetensors")}
        return {part: _restore(content, arrays.get(f"{part}.safetensors", {})) for part, content in plain.items()}
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise CheckpointError(f"{path} is not a valid checkpoint: {type(error).__name__}: {error}") from error


def verify(path: Path) -> None:
    """Compare the files of a checkpoint with its manifest, without parsing them.

    Raises:
      DamagedError: a file is missing or differs.
      CheckpointError: it cannot be read, or is of another schema.
    """
    for name, entry in _listed(path).items():
        _read_verified(path / name, entry)


def _listed(path: Path) -> dict[str, Any]:
    """Return the files of a checkpoint that its manifest lists."""
    manifest = _read_json(path / "manifest.json")
    if manifest.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{path / 'manifest.json'} has schema {manifest.get('schema')!r}; this packtrain reads schema {SCHEMA}"
        )
    listed = manifest.get("files")
    if not isinstance(listed, dict) or "state.json" not in listed:
        raise DamagedError(f"{path / 'manifest.json'} lists no state.json")
    for name in listed:
        if not name or "/" in name or "\0" in name or name.startswith("."):
            raise DamagedError(f"{path / 'manifest.json'} lists {name!r}, which is not a plain file name")
    return listed


def peek(folder: Path, step: int, part: str) -> Any:
    """Return a part of a checkpoint's state, unverified and with empty arrays; {} if it has none.

    CheckpointError if it cannot be read.
    """
    plain = _read_json(folder / str(step) / "state.json").get(part)
    return {} if plain is None else _restore(plain, collections.defaultdict(lambda: torch.empty(0)))


def steps(folder: Path) -> list[int]:
    """Return the steps of all checkpoints in ascending order; half-written ones are left out."""
    if not folder.is_dir():
        return []
    return sorted(int(child.name) for child in folder.iterdir() if child.name.isdecimal() and child.is_dir())


def load_newest(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """Load the newest undamaged checkpoint in RUN/checkpoints; damaged ones are skipped with a warning.

    CheckpointError if there are checkpoints, but none is whole.
    """
    _recover(folder)
    found = steps(folder)
    for step in reversed(found):
        try:
            return step, load(folder / str(step))
        except CheckpointError as error:
            log.warning("skipping a damaged checkpoint: %s", error)
    if found:
        raise CheckpointError(
            f"none of the {len(found)} checkpoints in {folder} is intact; "
            "--fresh starts a new run beside them and deletes nothing"
        )
    return None


def _recover(folder: Path) -> None:
    """Restore a checkpoint if a crash happened between moving it aside and replacing it by one of its step."""
    for old in folder.glob(".old-*"):
        final = folder / old.name.split("-")[1]
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # another user's folder may be read-only
                os.rename(old, final)


def choose(folder: Path, which: str) -> tuple[int, dict[str, Any]]:
    """Return the checkpoint called "latest" or "best", or of a given step."""
    found = steps(folder)
    if not found:
        raise CheckpointError(f"{folder} holds no checkpoint; train for longer, or look for the run elsewhere")
    if which == "latest":
        newest = load_newest(folder)
        assert newest is not None
        return newest
    if which == "best":
        entry = best(folder)
        if entry is None:
            raise CheckpointError(
                f"{folder} has no best checkpoint: the run was not evaluated; try --checkpoint latest"
            )
        return entry["step"], load(folder / str(entry["step"]))
    if not which.isdecimal() or int(which) not in found:
        raise CheckpointError(f"no checkpoint {which!r}; there are {', '.join(map(str, found))}, 'latest' and 'best'")
    return int(which), load(folder / which)


def best(folder: Path) -> dict[str, Any] | None:
    """Return {"step", "score"} of the best checkpoint, or None."""
    path = folder / "best.json"
    if not path.exists():
        return None
    entry = _read_json(path)
    if not isinstance(entry.get("step"), int) or not isinstance(entry.get("score"), (int, float)):
        raise CheckpointError(f"{path} does not name a step and a score")
    return entry


def mark_best(
    folder: Path, step: int, score: float, rewards: dict[str, float] | None = None, kind: str = "greedy"
) -> None:
    """Record the best checkpoint: its return on the training reward, its returns of other rewards, and how it acted."""
    entry = {"step": step, "score": score, "kind": kind, **({"rewards": rewards} if rewards else {})}
    write_whole(folder / "best.json", json.dumps(entry).encode())
    sync_folder(folder)


def prune(folder: Path, keep_every: int | None, whole: set[int] | None = None, written: int | None = None) -> None:
    """Delete all but the last three undamaged checkpoints, the best one, and the first of each `keep_every` steps.

    Damaged ones among the newest do not count: they are renamed to STEP.damaged, of which the last few are kept.

    Args:
      folder: RUN/checkpoints.
      keep_every: steps of a span; None: no spans.
      whole: steps whose checkpoints this process has written or verified, which are not read again; those that are
        verified here are added.
      written: the step that was written last, which stays even if others have higher steps.
    """
    kept = _last_whole(folder, set() if whole is None else whole)
    if written is not None:
        kept.add(written)
    found = steps(folder)
    try:
        entry = best(folder)
    except CheckpointError:
        entry = None
    if entry is not None:
        kept.add(entry["step"])
    if keep_every:
        spans: dict[int, int] = {}
        for step in found:
            spans.setdefault(step // keep_every, step)
        kept.update(spans.values())
    for step in found:
        if step not in kept:
            shutil.rmtree(folder / str(step), ignore_errors=True)
    for leftover in folder.glob(".writing-*"):
        if not leftover.name.endswith(f"-{os.getpid()}"):
            shutil.rmtree(leftover, ignore_errors=True)


def _last_whole(folder: Path, whole: set[int]) -> set[int]:
    """Return the last three undamaged checkpoints and unreadable newer ones; damaged ones are moved aside."""
    kept, count = set(), 0
    for step in reversed(steps(folder)):
        if count == KEPT:
            break
        try:
            if step not in whole:
                verify(folder / str(step))
        except DamagedError as error:
            _move_aside(folder, step, error)
            continue
        except CheckpointError:  # written by a later version, or on a disk that does not answer: both may be temporary
            kept.add(step)
            continue
        whole.add(step)
        kept.add(step)
        count += 1
    return kept


def _move_aside(folder: Path, step: int, error: DamagedError) -> None:
    """Rename a damaged checkpoint, so that it is neither counted nor loaded; only the last few of these are kept."""
    aside = folder / f"{step}.damaged"
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(folder / str(step), aside)
    warn(f"{error}; the checkpoint is now {aside.name}")
    names = [child.name.removesuffix(".damaged") for child in folder.glob("*.damaged")]
    for old in sorted(int(name) for name in names if name.isdecimal())[:-MOST_DAMAGED]:
        shutil.rmtree(folder / f"{old}.damaged", ignore_errors=True)


def _strip(tree: Any, part: str, path: str, arrays: dict[str, torch.Tensor]) -> Any:
    """Return the tree with placeholders for its arrays, which are moved to `arrays`."""
    if isinstance(tree, np.ndarray):
        arrays[path] = torch.from_numpy(np.ascontiguousarray(tree).reshape(tree.shape))  # a 0-d array stays 0-d
        return {"__array__": path, "numpy": True}
    if isinstance(tree, torch.Tensor):
        arrays[path] = tree.detach().cpu().contiguous()
        return {"__array__": path, "numpy": False}
    if isinstance(tree, dict):
        values = {key: _strip(tree[key], part, f"{path}/{key}", arrays) for key in tree}
        if all(isinstance(key, str) for key in tree):
            return {"__dict__": values}
        if not all(type(key) in (int, str) for key in tree) or len({str(key) for key in tree}) < len(tree):
            raise TypeError(f"{part}{path} has keys {list(tree)[:5]}; expected strings or integers, all different")
        # dictionary with other keys than strings, such as a torch optimiser's state
        return {"__items__": [list(item) for item in values.items()]}
    if isinstance(tree, (tuple, list)):
        kind = "__tuple__" if isinstance(tree, tuple) else "__list__"
        return {kind: [_strip(item, part, f"{path}/{index}", arrays) for index, item in enumerate(tree)]}
    if isinstance(tree, np.generic):
        return tree.item()
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise TypeError(f"{part}{path} is a {type(tree).__name__}, which a checkpoint cannot hold")


def _restore(tree: Any, arrays: dict[str, torch.Tensor]) -> Any:
    if isinstance(tree, dict):
        if "__array__" in tree:
            array = arrays[tree["__array__"]]
            return array.numpy() if tree["numpy"] else array
        if "__dict__" in tree:
            return {key: _restore(value, arrays) for key, value in tree["__dict__"].items()}
        if "__items__" in tree:
            return {key: _restore(value, arrays) for key, value in tree["__items__"]}
        if "__tuple__" in tree:
            return tuple(_restore(item, arrays) for item in tree["__tuple__"])
        return [_restore(item, arrays) for item in tree["__list__"]]
    return tree


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_inside(path.parent, path.name, MOST_JSON))
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except RunFolderError as error:  # a link, a pipe or a device
        raise CheckpointError(str(error)) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} does not read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise DamagedError(f"{path} does not hold a JSON object")
    return content


def _read_verified(path: Path, entry: Any) -> bytes:
    if not isinstance(entry, dict):
        raise DamagedError(f"{path.parent / 'manifest.json'} has no entry for {path.name}")
    try:
        size = path.lstat().st_size
        if size != entry.get("bytes"):
            raise DamagedError(f"{path} has {size} bytes, but its manifest expects {entry.get('bytes')}")
        if size > psutil.virtual_memory().available:
            raise CheckpointError(f"{path} has {size:,} bytes, more than the available memory")
        data = read_inside(path.parent, path.name, size)
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except RunFolderError as error:  # a link, a pipe or a device
        raise CheckpointError(str(error)) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != entry.get("sha256"):
        raise DamagedError(f"{path} is damaged: its SHA-256 is not the manifest's")
    return data


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        sync(file.fileno(), path)
