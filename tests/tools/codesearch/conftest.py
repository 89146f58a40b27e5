"""One store for all tests: its parsing processes start once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slipstream.tools.codesearch import Store


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.close()
