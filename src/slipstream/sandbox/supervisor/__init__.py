"""The supervisor (process 1 of a sandbox), and the host side: the control channel, programs and shell."""

from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")
OCI_ENTRY = Path(__file__).with_name("oci_entry.py")
"""A container's first program, which turns into the supervisor."""
