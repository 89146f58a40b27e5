"""What the loop asks of a learner. Each trainer that Slipstream drives is one: see `bridges`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

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
        """All that is needed to go on from here, into a folder that does not exist yet. Whole or not at all."""
        ...

    async def load(self, folder: Path) -> None:
        """Go on from what was saved."""
        ...

    async def aclose(self) -> None: ...
