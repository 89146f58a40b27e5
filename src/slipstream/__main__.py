"""`python -m slipstream` is `slipstream`."""

from slipstream.cli.main import main

main()
