"""What the training loop needs of a learner. `bridges` has one for each trainer that Slipstream drives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from slipstream.model.base import Completer
from slipstream.types import Batch, UpdateResult


class Learner(Protocol):
    @property
    def version(self) -> int:
        """How many updates the policy has seen; sampled tokens carry it."""
        ...

    @property
    def completer(self) -> Completer:
        """Samples from the policy as it is now."""
        ...

    async def update(self, batch: Batch) -> UpdateResult:
        """Learn from a batch; on return the completer samples from the new policy.

        Raises LearnerError if it fails, and then leaves the policy as it was.
        """
        ...

    async def save(self, folder: Path) -> None:
        """Write all that is needed to resume from here into a new folder, completely or not at all.

        It is durable on return, so an older one may then be removed.
        """
        ...

    async def load(self, folder: Path) -> None:
        """Resume from what was saved. Raises LearnerError if that is damaged; then another may be loaded."""
        ...

    async def aclose(self) -> None: ...


class PolicyLearner(Learner, Protocol):
    """A learner that can also do a warm start and export its model."""

    async def warm_start(
        self, demonstrations: Sequence[Any], config: Any, *, on_step: Callable[[int, int, float], None], keep: Path
    ) -> Mapping[str, float]:
        """Imitate demonstrations, each with `ids` and a `mask`; the version stays as it is. `config` is the settings'
        `warm_start.learning`, of a type of the engine's. `on_step` is called after each step with its number, how many
        there are, and its loss. Progress may be saved in the folder `keep`, so that a stopped one can be resumed."""
        ...

    async def export(self, folder: Path) -> None:
        """Write what was learnt into a new folder."""
        ...
