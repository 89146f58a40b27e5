"""The parts of the `tests` grader: which work is accepted, how tests are run and reported, how logs are parsed, and
how results are compared with the expected ones."""
