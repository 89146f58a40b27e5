"""The `local` provider: sandboxes on this machine, made with bubblewrap."""
