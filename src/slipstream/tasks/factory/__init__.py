"""The task factory: software-engineering tasks made from any pure Python package (`docs/swe.md`).

    source distribution -> fetch -> suite -> mutate -> plant -> statement -> make (gate) -> tasks.jsonl, trees/

Invariants: code of a package runs in sandboxes alone, which have no network; what is made depends on the sources and
the seed.
"""
