"""Readers of public software-engineering data sets: SWE-bench (and Verified, Lite), SWE-Gym, R2E-Gym and SWE-smith.

    rows of JSONL, JSON or Parquet -> Tasks: an image, the problem, and a grading that the agent never sees

    tasks.source=slipstream.tasks.swe.swebench:read_swebench tasks.args.path=verified.parquet

Invariants: the gold patch, the hidden tests and the later history of a repository are never in the agent's sandbox; a
row that cannot be read is an error of one sentence with file, row and field.
"""
