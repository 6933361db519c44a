"""Work on a CPU recorded once and repeated: an update's operations without what stands around them.

An update of small networks is a hundred operations of microseconds, and half as much again passes in Python, in
autograd and in making views. A tape notes what torch dispatches while the work runs once, drops what nobody uses, gives
every result a place that never moves, and from then on makes the same calls in the same order. Results are the same,
bit for bit. Places are used again as soon as what lies there is not needed any more, so that little memory is touched.

As with work captured on a GPU, inputs are copied into place before each run, numbers that Python computes are those of
the first run, and what depends on data that only Python could look at cannot be taped. Code that does not go through
torch's dispatcher is not seen: NumPy's, and functions that torch has compiled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

log = logging.getLogger("packtrain")
_UNTAPED = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
_ALWAYS_THE_SAME = (
    "arange",
    "full",
    "full_like",
    "new_full",
    "new_ones",
    "new_zeros",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
)
# Torch's own functions take half as long to call as the dispatcher's, with the same arguments.
_SHORTER = {
    **{f"aten.{name}.out": getattr(torch, name) for name in ("add", "addcmul", "baddbmm", "bmm", "cat", "div", "exp")},
    **{f"aten.{name}.out": getattr(torch, name) for name in ("gather", "index_select", "maximum", "mean", "minimum")},
    **{f"aten.{name}.out": getattr(torch, name) for name in ("mul", "neg", "stack", "sub", "tanh")},
    **{f"aten.{name}.Scalar_out": getattr(torch, name) for name in ("div", "mul")},
    "aten.add_.Tensor": Tensor.add_,
    "aten.pow.Tensor_Scalar_out": torch.pow,
    "aten.relu_.default": torch.relu_,
    "aten.sum.IntList_out": torch.sum,
}


class Taped:
    """A call without arguments, on a CPU, that is recorded when it first runs and repeated after that."""

    def __init__(self, call: Callable[[], None], name: str):
        """Nothing runs yet.

        Args:
          call: reads and writes tensors that never move.
          name: for the log.
        """
        self._call, self._name = call, name
        self._calls: list[Callable[[], Any]] | None = None
        self._possible = True

    @torch.no_grad()
    def __call__(self) -> None:
        """Run it, from the tape if there is one."""
        if self._calls is not None:
            for call in self._calls:
                call()
        elif self._possible:
            self._record()
        else:
            with torch.enable_grad():
                self._call()

    def _record(self) -> None:
        recorder = _Recorder()
        with torch.enable_grad(), recorder:
            self._call()
        if recorder.obstacle is None:
            self._calls = _played(recorder.noted)
            log.info("%s is taped: %d operations of %d", self._name, len(self._calls), len(recorder.noted))
        else:
            log.warning("%s is not taped, which would make it faster: %s", self._name, recorder.obstacle)
            self._possible = False


class _Noted(NamedTuple):
    """One operation that was dispatched."""

    function: Any  # an OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    @property
    def given(self) -> list[Tensor]:
        return _tensors((self.args, self.kwargs))

    @property
    def made(self) -> list[Tensor]:
        return _tensors(self.result)

    @property
    def written(self) -> list[Tensor]:
        """Those of its arguments that it changes."""
        places = self.function._schema.arguments
        named = {place.name for place in places if _is_written(place)}
        by_place = [value for place, value in zip(places, self.args, strict=False) if place.name in named]
        return _tensors((by_place, [value for name, value in self.kwargs.items() if name in named]))

    @property
    def looks(self) -> bool:
        """Whether all it makes lies in the memory of what it is given, and nothing is written: a view."""
        memory = {_memory(leaf) for leaf in self.given}
        return not self.written and all(_memory(leaf) in memory for leaf in self.made)


class _Recorder(TorchDispatchMode):
    """Notes every operation; all tensors stay alive until it is gone, so that memory tells them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[_Noted] = []
        self.obstacle: str | None = None

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if any(tag in function.tags for tag in _UNTAPED):
            self.obstacle = f"{function} depends on what numbers are, or changes shapes"
        self.noted.append(_Noted(function, args, kwargs, result))
        return result


def _played(noted: list[_Noted]) -> list[Callable[[], Any]]:
    """The calls that repeat what was noted."""
    noted = _without_constants(noted)
    own = _made_here(noted)
    needed = [one for one in _needed(noted, own) if not one.looks]
    last = {_memory(leaf): number for number, one in enumerate(needed) for leaf in (*one.given, *one.made)}
    places = _Places(own)
    calls = []
    for number, one in enumerate(needed):
        calls.append(_call(one, places))
        for memory in {_memory(leaf) for leaf in (*one.given, *one.made)}:
            if last[memory] == number:
                places.free(memory)
    return calls


def _without_constants(noted: list[_Noted]) -> list[_Noted]:
    """Without making what is always the same and nobody writes to: it stays where it was made."""
    written = {_memory(leaf) for one in noted for leaf in one.written}

    def constant(one: _Noted) -> bool:
        name = one.function.overloadpacket.__name__
        return name in _ALWAYS_THE_SAME and all(_memory(leaf) not in written for leaf in one.made)

    return [one for one in noted if not constant(one)]


def _made_here(noted: list[_Noted]) -> set[int]:
    """The memory of what was made in the course of this; everything else was there before."""
    before: set[int] = set()
    own: set[int] = set()
    for one in noted:
        before |= {_memory(leaf) for leaf in one.given} - own
        own |= {_memory(leaf) for leaf in one.made} - before
    return own


def _needed(noted: list[_Noted], own: set[int]) -> list[_Noted]:
    """Without what makes or changes only memory that is not looked at afterwards."""
    found, live = [], set[int]()
    for one in reversed(noted):
        touched = {_memory(leaf) for leaf in (one.written or one.made)}
        if touched - own or touched & live:
            found.append(one)
            live |= {_memory(leaf) for leaf in (*one.given, *one.made)}
    return found[::-1]


class _Places:
    """Memory for what is made in the course of a tape."""

    def __init__(self, own: set[int]):
        self._own = own
        self._taken: dict[int, torch.UntypedStorage] = {}
        self._spare: dict[int, list[torch.UntypedStorage]] = {}  # by size

    def at(self, leaf: Tensor) -> Tensor:
        """Where a tensor lies whenever the tape runs."""
        memory = _memory(leaf)
        if memory not in self._own:
            return leaf.detach()
        if memory not in self._taken:
            size = leaf.untyped_storage().nbytes()
            spare = self._spare.setdefault(size, [])
            self._taken[memory] = spare.pop() if spare else torch.empty(size, dtype=torch.uint8).untyped_storage()
        place = torch.empty(0, dtype=leaf.dtype)
        return place.set_(self._taken[memory], leaf.storage_offset(), leaf.size(), leaf.stride())

    def free(self, memory: int) -> None:
        """Nobody looks there again."""
        if memory in self._taken:
            place = self._taken.pop(memory)
            self._spare[place.nbytes()].append(place)


def _call(one: _Noted, places: _Places) -> Callable[[], Any]:
    args, kwargs = tree_map_only(Tensor, places.at, (one.args, one.kwargs))
    if one.written:
        return _shortest(one.function, args, kwargs)
    results = one.result if isinstance(one.result, tuple) else (one.result,)
    into = tree_map_only(Tensor, places.at, results)
    found = _writes_into(one.function, into)
    if found is None:
        return partial(_call_and_copy, partial(one.function, *args, **kwargs), _tensors(into))
    function, names = found
    taken = {place.name for place in function._schema.arguments}
    kept = {name: value for name, value in kwargs.items() if name in taken}
    return _shortest(function, args, {**kept, **dict(zip(names, into, strict=True))})


def _writes_into(function: Any, results: tuple[Any, ...]) -> tuple[Any, list[str]] | None:
    """The same operation that writes its results where it is told, and the names of its arguments for that."""
    if None in results:
        return None
    packet = function.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        names = [place.name for place in other._schema.arguments if _is_written(place)]
        if len(names) == len(results) and _signature(other, names) == _signature(function, names):
            return other, names
    return None


def _signature(function: Any, without: list[str]) -> list[tuple[str, str]]:
    places = function._schema.arguments
    return [(place.name, str(place.type)) for place in places if not place.kwarg_only and place.name not in without]


def _shortest(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    return partial(_SHORTER.get(str(function), function), *args, **kwargs)


def _call_and_copy(call: Callable[[], Any], into: list[Tensor]) -> None:
    for place, leaf in zip(into, _tensors(call()), strict=True):
        place.copy_(leaf)


def _is_written(place: Any) -> bool:
    return place.alias_info is not None and place.alias_info.is_write


def _memory(leaf: Tensor) -> int:
    return leaf.untyped_storage()._cdata


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
