"""The parts of the `tests` grader: what of the work is taken, how tests are run and reported, how logs are read, and
how results are compared with what was expected."""
