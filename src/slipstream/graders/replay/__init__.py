"""Call-value replay: recorded calls are made again on the work, in a process that knows no expected value."""
