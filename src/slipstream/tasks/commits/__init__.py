"""Tasks from the history of a git clone (`docs/swe.md`).

    clone -> repository -> selection -> checkout -> trial -> statement -> building -> make (gate) -> tasks.jsonl, trees/

Invariants: git reads objects on the host and runs nothing of the repository; the repository's code runs only in
sandboxes without a network; an agent's tree holds neither the fix nor the commit's tests.
"""
