"""Keeps numpy's matrix products on the calling thread.

Its BLAS starts a thread for each core and lets them spin. Beside other work on the same cores that makes a product of a
few rows many times slower, and queries are small: threads belong to whoever has several batches at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.errors import ConfigError


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """For the whole process while the block runs; torch has threads of its own and is not affected."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise ConfigError("a local index needs threadpoolctl: pip install 'slipstream[research]'") from None
    with threadpool_limits(limits=1, user_api="blas"):
        yield
