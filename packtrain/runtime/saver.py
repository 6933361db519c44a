"""Saving of a run: periodically, before an evaluation, at its end, and when its folder is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from packtrain.errors import FolderLostError, RunFolderError, SaveError
from packtrain.runtime import run_state
from packtrain.runtime.checkpoint_writer import Saving

if TYPE_CHECKING:
    from packtrain.runtime.training import Training


class Saver:
    """Saves one run; acting is paused while its state is copied."""

    def __init__(self, training: Training):
        """Create a saver; nothing is saved yet.

        Args:
          training: the run.
        """
        run, folder = training.experiment.run, training.folder
        self._training = training
        self._saving = Saving(folder, run.checkpoint_secs, run.keep_every, self._evaluated_memories)
        self.written = self._saving.written  # steps of checkpoints that have not been reported yet
        self.decides = True  # False for runs that learn together, which are all saved at the same update

    def _evaluated_memories(self) -> dict[str, Any]:
        """Return the memories of the state that is being evaluated."""
        evaluated = self._training.evaluations.under_way
        return {} if evaluated is None or evaluated.state is None else evaluated.state.get("memories", {})

    @property
    def due(self) -> bool:
        """Return whether it is time for a checkpoint."""
        return self._saving.due

    def save_if_due(self, background: bool) -> None:
        """Save when `checkpoint_secs` have passed, unless another component decides when."""
        if self.decides and self.due:
            self.save(background=background)

    def save(self, background: bool = False, with_actor: bool = True, required: bool = False) -> None:
        """Write a checkpoint of the current state in the background: only copying it pauses training.

        A disk that refuses is a warning, since the checkpoint before stands.

        Raises:
          FolderLostError: the run folder is no longer where it was; what could be saved was saved elsewhere.
          SaveError: the disk refused, and this checkpoint is `required`.
        """
        with self._rescuing(with_actor):
            self._save(background, with_actor, required)

    def state_to_evaluate(self) -> dict[str, Any] | None:
        """Return the current state for an evaluation that may find it to be the best; None if the disk refuses."""
        state = None
        with self._rescuing(), self._saving.guarded(self._training.progress.step):  # segments of the replay are written
            state = run_state.collect(self._training, with_actor=True)
        return state

    def keep_if_best(self, state: dict[str, Any], score: float, rewards: dict[str, float], kind: str) -> None:
        """Write the state that was evaluated as the best checkpoint, if no other has a higher score.

        Args:
          state: from `state_to_evaluate`.
          score: its mean return.
          rewards: the means of other reward channels.
          kind: of the evaluation, greedy or sampled.
        """
        with self._rescuing():
            self._saving.keep_if_best(state, score, rewards, kind)

    @contextlib.contextmanager
    def _rescuing(self, with_actor: bool = True) -> Iterator[None]:
        """Save to the folder's new path or to a new folder if the run folder is lost, and end the run.

        The FolderLostError that is raised then contains the new place.
        """
        training = self._training
        folder = training.folder
        try:
            yield
        except FolderLostError as error:
            try:
                happened = folder.find_again()
                for name, memory in training.learning.memories.items():
                    memory.move(folder.path / "replay" / name)
                training.log.move(folder.metrics)
                folder.write_config(training.setup.configuration.text())
                self._save(False, with_actor, required=True)
            except (OSError, RunFolderError, SaveError) as failed:
                raise FolderLostError(f"{error}; nothing could be saved since: {failed}") from error
            place, step = folder.shown, training.progress.step
            raise FolderLostError(
                f"{happened}: saved at step {step:,} in {place}; the same command with --output_dir {place} goes on"
            ) from error

    def _save(self, background: bool, with_actor: bool, required: bool) -> None:
        training, state = self._training, None
        with training.gate.held() if with_actor else contextlib.nullcontext():
            with self._saving.guarded(training.progress.step, required):  # segments of the replay are written
                state = run_state.collect(training, with_actor)
        if state is not None:
            self._saving.write(state, background, required)

    def report_checkpoints(self) -> None:
        """Notify the sinks of checkpoints that have been written."""
        while self.written:
            step = self.written.popleft()
            self._training.log.checkpoint(step, self._training.folder.checkpoints / str(step))

    def join(self) -> None:
        """Wait for background writes."""
        self._saving.join()
