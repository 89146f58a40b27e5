"""What the loop asks of a learner. Each trainer that Slipstream drives is one: see `bridges`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from slipstream.model.base import Completer
from slipstream.types import Batch, UpdateResult


class Learner(Protocol):
    @property
    def version(self) -> int:
        """How many updates the policy has seen: that of the tokens that are sampled now."""
        ...

    @property
    def completer(self) -> Completer:
        """Samples from the policy as it is now."""
        ...

    async def update(self, batch: Batch) -> UpdateResult:
        """Learn from a batch; on return the completer samples from the new policy.

        Raises LearnerError if there is no going on, and then leaves the policy as it was.
        """
        ...

    async def save(self, folder: Path) -> None:
        """All that is needed to go on from here, into a folder that does not exist yet. Whole or not at all.

        It is durable on return: an older one may be removed then.
        """
        ...

    async def load(self, folder: Path) -> None:
        """Go on from what was saved. Raises LearnerError if that is damaged; another may be loaded then."""
        ...

    async def aclose(self) -> None: ...


class PolicyLearner(Learner, Protocol):
    """A learner that a training run can begin and end with."""

    async def warm_start(
        self, demonstrations: Sequence[Any], config: Any, *, on_step: Callable[[int, int, float], None], keep: Path
    ) -> Mapping[str, float]:
        """Imitate demonstrations, each with `ids` and a `mask`; the version stays as it is. `config` is the settings'
        `warm_start.learning`, whose type is the engine's and no matter of this room. `on_step` is told after a step
        which it was, of how many, and its loss. What it has come to may be kept in the folder `keep`, so that one
        that was stopped can go on."""
        ...

    async def export(self, folder: Path) -> None:
        """What was learnt, into a folder that does not exist yet."""
        ...
