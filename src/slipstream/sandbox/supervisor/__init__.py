"""The supervisor, process 1 of a sandbox, and the host's side of it: its control channel, programs and shell."""

from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")
OCI_ENTRY = Path(__file__).with_name("oci_entry.py")
"""The first program of a container, which becomes the supervisor."""
