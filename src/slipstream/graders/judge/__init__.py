"""The LLM judge: a model that says whether an answer agrees with a reference."""
