"""The task factory: software-engineering tasks made from any pure Python package (`docs/swe.md`).

    source distribution -> fetch -> suite -> mutate -> plant -> statement -> make (gate) -> tasks.jsonl, trees/

Invariants: a package's code runs only in sandboxes without a network; the result depends only on the sources and the
seed.
"""
