"""A sandbox's files, read and written from outside without following a link out of it."""
