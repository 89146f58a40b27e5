"""Readers of public software-engineering data sets: SWE-bench (and Verified, Lite), SWE-Gym, R2E-Gym and SWE-smith.

    rows of JSONL, JSON or Parquet -> Tasks: an image, the problem, and a grading that the agent never sees

    tasks.source=slipstream.tasks.swe.swebench:read_swebench tasks.args.path=verified.parquet

Invariants: the gold patch, the tests and the later history of a repository are in no sandbox of the agent's; a row
that cannot be read ends in one sentence with its file, its place and the field.
"""
