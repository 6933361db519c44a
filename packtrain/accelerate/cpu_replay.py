"""Recorded CPU replay: the tensor operations of an update are recorded once and repeated without Python overhead.

An update of small networks consists of a hundred operations of microseconds each; Python, autograd and the creation of
views add half of that time again. A recording contains the operations that torch dispatches while the call runs. Unused
operations are dropped, every result gets a fixed address, and a replay makes the same calls in the same order. Results
are equal bit for bit. Memory is reused as soon as its contents are not needed any more, so that the caches are not
filled with old results.

As with a CUDA graph, inputs are copied to fixed addresses before each run, and values computed in Python are not
computed again. The first two runs are recorded; the recording is used only if both consist of the same operations, on
the same memory, with the same Python numbers. The third run is made both ways, and replay begins only if both leave the
same bytes. Calls cannot be recorded if they depend on data that is read in Python, or if they draw random numbers. Code
that bypasses torch's dispatcher is not recorded: NumPy, and functions that torch has compiled.

Plain updates alone take 3.6 times as long as recorded ones in ddpg_pendulum, 3.1 times in sac_pendulum, 1.5 times in
steve_pendulum and 2.0 times for its world model; 1.3 times with 2 × 256 units and batches of 256 (one thread). Whole
runs, environments and logging included, take 1.26 times the CPU time without recording in steve/steve_pendulum (1.20
and 1.32 in two rounds) and 1.13 times in sac/pendulum (one round; benchmarks/cpu_paths.py, 2026-11-20, one thread,
torch 2.13.0). No library does this: torch.compile takes a minute before the first update. `ReplayLearner.capture =
False` turns it off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

log = logging.getLogger("packtrain")
_NOT_RECORDABLE = {
    torch.Tag.data_dependent_output: "reads values in Python",
    torch.Tag.dynamic_output_shape: "has results whose size depends on values",
    torch.Tag.inplace_view: "changes the shape of a tensor in place",
    torch.Tag.nondeterministic_seeded: "draws random numbers",
}
_CONSTANT = set("arange full full_like new_full new_ones new_zeros ones ones_like zeros zeros_like".split())
_EMPTY = set("empty empty_like empty_strided new_empty new_empty_strided".split())  # allocations: done at recording
_COPIES = {"clone", "_to_copy"}
_JOINS = {"cat", "stack"}  # copies too if there is one input
_OF_A_PLACE = {"dtype", "layout", "device", "pin_memory", "memory_format"}  # arguments implied by a given output tensor
# Torch's own functions take half as long to call as the dispatcher's, with the same arguments.
_SHORTER = {
    **{f"aten.{name}.out": getattr(torch, name) for name in ("add", "addcmul", "baddbmm", "bmm", "cat", "div", "exp")},
    **{f"aten.{name}.out": getattr(torch, name) for name in ("gather", "index_select", "maximum", "mean", "minimum")},
    **{f"aten.{name}.out": getattr(torch, name) for name in ("mul", "neg", "stack", "sub", "tanh")},
    **{f"aten.{name}.Scalar_out": getattr(torch, name) for name in ("div", "mul")},
    "aten.add_.Tensor": Tensor.add_,
    "aten.copy_.default": Tensor.copy_,
    "aten.pow.Tensor_Scalar_out": torch.pow,
    "aten.relu_.default": torch.relu_,
    "aten.sum.IntList_out": torch.sum,
}


class MemoryPool:
    """A pool of unused memory. Recordings that never run at the same time may share it."""

    def __init__(self) -> None:
        self._blocks: list[torch.UntypedStorage] = []

    def take(self, size: int) -> torch.UntypedStorage:
        """Return a block of this many bytes, or up to twice as many."""
        fits = [place for place, block in enumerate(self._blocks) if size <= block.nbytes() <= 2 * size]
        if not fits:
            return torch.empty(size, dtype=torch.uint8).untyped_storage()
        return self._blocks.pop(min(fits, key=lambda place: self._blocks[place].nbytes()))

    def give(self, block: torch.UntypedStorage) -> None:
        """Return a block to the pool."""
        self._blocks.append(block)


class RecordedCall:
    """A call without arguments on a CPU: recorded in two runs, checked in a third, and replayed after that."""

    def __init__(self, call: Callable[[], None], name: str, pool: MemoryPool | None = None):
        """Store the call; nothing runs yet.

        Args:
          call: reads and writes tensors that never move.
          name: for the log.
          pool: supplies memory, and takes it back when it is not needed.
        """
        self._call, self._name, self._pool = call, name, pool or MemoryPool()
        self._first: _Outline | None = None
        self._tried: _Recording | None = None
        self._calls: list[Callable[[], Any]] | None = None
        self._possible = True

    @torch.no_grad()
    def __call__(self) -> None:
        """Run the call, by replay if it has been recorded."""
        if self._calls is not None:
            for call in self._calls:
                call()
        elif self._tried is not None:
            self._try(self._tried)
        elif self._possible:
            self._record()
        else:
            self._run()

    def _run(self) -> None:
        """Run the call without a recording."""
        with torch.enable_grad():
            self._call()

    def _record(self) -> None:
        recorder = _Recorder()
        with recorder, _BypassDetector(recorder):
            self._run()
        if recorder.obstacle is not None:
            self._give_up(recorder.obstacle)
            return
        outline = _Outline(recorder.operations)
        if not outline.there:
            self._give_up("it reads and writes no tensor that existed before")
        elif self._first is None:
            self._first = outline
        elif outline.steps == self._first.steps:
            self._tried = _Recording(
                _replay_calls(recorder.operations, self._pool), outline.there, len(recorder.operations)
            )
        else:
            self._give_up("two runs differed")

    def _try(self, recording: _Recording) -> None:
        """Run the call and its replay from the same state and compare them; the plain call's state is kept."""
        before = [leaf.clone() for leaf in recording.there]
        self._run()
        plain = [leaf.clone() for leaf in recording.there]
        torch._foreach_copy_(recording.there, before)
        try:
            for call in recording.calls:
                call()
            same = all(torch.equal(leaf, wanted) for leaf, wanted in zip(recording.there, plain, strict=True))
        except RuntimeError:
            same = False
        if same:
            self._calls = recording.calls
            log.info("%s is recorded: %d operations of %d", self._name, len(recording.calls), recording.operations)
        else:
            torch._foreach_copy_(recording.there, plain)
            self._give_up("its replay gave another result")
        self._first = self._tried = None

    def _give_up(self, why: str) -> None:
        log.warning("%s is not recorded, which would make it faster: %s", self._name, why)
        self._possible, self._first = False, None


class _Recording(NamedTuple):
    """The operations that replay a call."""

    calls: list[Callable[[], Any]]
    there: list[Tensor]  # all memory that existed before the call, as bytes
    operations: int  # number of operations before unused ones were dropped


class _Operation(NamedTuple):
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
        """Return the arguments that the operation changes."""
        places = self.function._schema.arguments
        named = {place.name for place in places if _is_written(place)}
        by_place = [value for place, value in zip(places, self.args, strict=False) if place.name in named]
        return _tensors((by_place, [value for name, value in self.kwargs.items() if name in named]))

    @property
    def adds_memory(self) -> bool:
        """Return whether a result lies outside the memory of the arguments."""
        return not _memories(self.made) <= _memories(self.given)

    @property
    def looks(self) -> bool:
        """Return whether the operation is a view; operations that return and change nothing are checks."""
        return bool(self.made) and not self.written and not self.adds_memory


class _Recorder(TorchDispatchMode):
    """Records every operation; keeps all tensors alive meanwhile, so that each has its own memory."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[_Operation] = []
        self.obstacle: str | None = None  # why the call cannot be recorded
        self._literals: set[int] = set()  # memory of tensors made from Python numbers, new in each run

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if self.obstacle is None:
            one = _Operation(function, args, kwargs, result)
            why = self._why_not(one)
            self.obstacle = None if why is None else f"{function} {why}"
            self.operations.append(one)
        return result

    def _why_not(self, one: _Operation) -> str | None:
        if any(not _is_plain(leaf) for leaf in (*one.given, *one.made)):
            return "uses tensors that are not plain memory"
        if _is_literal(one):
            self._literals |= _memories(one.made)
        elif _memories(one.written) & self._literals:
            return "changes a constant that is created in each run"
        if one.written and one.adds_memory:
            return "changes one tensor and creates another"
        return next((why for tag, why in _NOT_RECORDABLE.items() if tag in one.function.tags), None)


class _BypassDetector(TorchFunctionMode):
    """Detects accesses to numbers or memory that bypass torch's dispatcher."""

    def __init__(self, recorder: _Recorder):
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        given = len(_tensors((args, kwargs)))
        looks = name in ("tolist", "numpy") or (name == "tensor" and given) or (name == "tensor_split" and given > 1)
        exchanges = function == Tensor.data.__set__  # type: ignore[attr-defined]
        if (looks or exchanges) and self._recorder.obstacle is None:
            self._recorder.obstacle = (
                f"{name} {'reads values in Python' if looks else 'replaces the memory of a tensor'}"
            )
        return function(*args, **kwargs)


class _Outline:
    """The operations of a run, with their numbers and memory: two equal runs have the same `steps`.

    `there` is all memory that existed before the run, as bytes. Holding it keeps the allocator from reusing it.
    """

    def __init__(self, operations: list[_Operation]):
        own = _made_here(operations)
        order: dict[int, int] = {}
        literals = {_memory(one.made[0]): one.made[0].tolist() for one in operations if _is_literal(one)}
        given = {_memory(leaf): leaf for one in operations for leaf in one.given if _memory(leaf) not in own}
        self.there = [torch.empty(0, dtype=torch.uint8).set_(leaf.untyped_storage()) for leaf in given.values()]

        def place(leaf: Tensor) -> Any:
            memory = _memory(leaf)
            if memory in literals:
                where: Any = literals[memory]
            else:
                where = ("own", order.setdefault(memory, len(order))) if memory in own else memory
            return (where, leaf.dtype, leaf.storage_offset(), leaf.size(), leaf.stride())

        self.steps = [(one.function, repr(tree_map_only(Tensor, place, one[1:]))) for one in operations]


def _replay_calls(operations: list[_Operation], pool: MemoryPool) -> list[Callable[[], Any]]:
    """Return the operations that replay a recording."""
    operations = _without_constants(operations)
    own = _made_here(operations)
    needed = [one for one in _needed(operations, own) if not one.looks and _name(one) not in _EMPTY]
    last = {memory: number for number, one in enumerate(needed) for memory in _memories((*one.given, *one.made))}
    places = _Places(own, pool)
    calls = []
    for number, one in enumerate(needed):
        calls.append(_call(one, places))
        for memory in _memories((*one.given, *one.made)):
            if last[memory] == number:
                places.free(memory)
    return calls


def _without_constants(operations: list[_Operation]) -> list[_Operation]:
    """Remove operations that create constants from Python numbers alone, if nothing writes to them."""
    written = {memory for one in operations for memory in _memories(one.written)}
    constants = {memory for one in operations if _is_literal(one) for memory in _memories(one.made)}
    kept = []
    for one in operations:
        given, made = _memories(one.given), _memories(one.made)
        same = _name(one) in _CONSTANT or (given and given <= constants)
        if one.adds_memory and same and not made & written:
            constants |= made
        else:
            kept.append(one)
    return kept


def _made_here(operations: list[_Operation]) -> set[int]:
    """Return the memory that was allocated during the recording; all other memory existed before."""
    before: set[int] = set()
    own: set[int] = set()
    for one in operations:
        before |= _memories(one.given) - own
        own |= _memories(one.made) - before
    return own


def _needed(operations: list[_Operation], own: set[int]) -> list[_Operation]:
    """Remove operations whose results and changes are not read afterwards."""
    found, live = [], set[int]()
    for one in reversed(operations):
        touched = _memories(one.written or one.made)
        if not touched or touched - own or touched & live:
            found.append(one)
            live |= _memories((*one.given, *one.made))
    return found[::-1]


class _Places:
    """Assigns memory to the tensors that a recording allocates."""

    def __init__(self, own: set[int], pool: MemoryPool):
        self._own, self._pool = own, pool
        self._taken: dict[int, torch.UntypedStorage] = {}

    def at(self, leaf: Tensor) -> Tensor:
        """Return the address of a tensor during a replay."""
        memory = _memory(leaf)
        if memory not in self._own:
            return leaf.detach()
        if memory not in self._taken:
            self._taken[memory] = self._pool.take(leaf.untyped_storage().nbytes())
        place = torch.empty(0, dtype=leaf.dtype)
        return place.set_(self._taken[memory], leaf.storage_offset(), leaf.size(), leaf.stride())

    def free(self, memory: int) -> None:
        """Release memory that is not read again."""
        if memory in self._taken:
            self._pool.give(self._taken.pop(memory))


def _call(one: _Operation, places: _Places) -> Callable[[], Any]:
    args, kwargs = tree_map_only(Tensor, places.at, (one.args, one.kwargs))
    if one.written:
        return _shortest(one.function, args, kwargs)
    results = one.result if isinstance(one.result, tuple) else (one.result,)
    into = tree_map_only(Tensor, places.at, results)
    if (source := _copied(one, args)) is not None:
        return partial(into[0].copy_, source)
    found = _writes_into(one.function, into, set(kwargs))
    if found is None:
        return partial(_call_and_copy, partial(one.function, *args, **kwargs), _tensors(into))
    function, names = found
    kept = {name: value for name, value in kwargs.items() if name in _names(function)}
    return _shortest(function, args, {**kept, **dict(zip(names, into, strict=True))})


def _copied(one: _Operation, args: tuple[Any, ...]) -> Tensor | None:
    """Return the tensor that an operation copies unchanged, in the shape of its result; None if it is no copy."""
    if _name(one) in _COPIES:
        return args[0]
    given, made = _tensors(args), one.made
    alike = len(given) == len(made) == 1 and given[0].numel() == made[0].numel() and given[0].is_contiguous()
    return given[0].view(made[0].shape) if alike and _name(one) in _JOINS else None


def _writes_into(function: Any, results: tuple[Any, ...], given: set[str]) -> tuple[Any, list[str]] | None:
    """Return the variant of an operation that writes to given output tensors, and the names of its output arguments.

    Args:
      function: the operation.
      results: tensors that it returned.
      given: names of arguments that the variant must have too.
    """
    if None in results:
        return None
    packet = function.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        names = [place.name for place in other._schema.arguments if _is_written(place)]
        if (
            len(names) == len(results)
            and _signature(other, names) == _signature(function, names)
            and given <= _names(other) | _OF_A_PLACE
            and _wanted(other) - set(names) <= given
        ):
            return other, names
    return None


def _signature(function: Any, without: list[str]) -> list[tuple[str, str]]:
    places = function._schema.arguments
    return [(place.name, str(place.type)) for place in places if not place.kwarg_only and place.name not in without]


def _wanted(function: Any) -> set[str]:
    """Return the arguments that an operation needs by name."""
    places = function._schema.arguments
    return {place.name for place in places if place.kwarg_only and not place.has_default_value()}


def _names(function: Any) -> set[str]:
    return {place.name for place in function._schema.arguments}


def _shortest(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    return partial(_SHORTER.get(str(function), function._op), *args, **kwargs)


def _call_and_copy(call: Callable[[], Any], into: list[Tensor]) -> None:
    for place, leaf in zip(into, _tensors(call()), strict=True):
        place.copy_(leaf)


def _name(one: _Operation) -> str:
    return str(one.function.overloadpacket.__name__)


def _is_written(place: Any) -> bool:
    return place.alias_info is not None and place.alias_info.is_write


def _is_literal(one: _Operation) -> bool:
    return one.function is torch.ops.aten.lift_fresh.default


def _is_plain(leaf: Tensor) -> bool:
    return leaf.layout == torch.strided and not leaf.is_conj() and not leaf.is_neg()


def _memory(leaf: Tensor) -> int:
    return leaf.untyped_storage()._cdata


def _memories(leaves: Any) -> set[int]:
    return {_memory(leaf) for leaf in leaves}


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
