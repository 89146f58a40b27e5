"""For all tests: without a GPU, Triton's kernels run in its interpreter. Triton reads that when it
is first imported, by whatever imports it."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
