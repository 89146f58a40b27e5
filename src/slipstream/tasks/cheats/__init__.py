"""Cheats: patches that try to be paid for without the work, each of which must be worth 0.

- base: what a cheat knows of a task, and how it is written down
- plain: those that fool careless graders
- files, forging, running, answering, ending: those written against the reporter's own code
- suite: all of them
"""
