"""How busy the machine was during a run, and what the run was waiting for."""
