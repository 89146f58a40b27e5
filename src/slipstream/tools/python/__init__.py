"""A Python interpreter that lives as long as the rollout. `tool.py` is the tool, `program.py` runs in the sandbox."""
