"""Code that an agent wrote, graded by what it returns or prints. `sandbox_program.py` runs in the sandbox."""
