"""The keeper: the process that makes the layers of local sandboxes and becomes their process 1."""
