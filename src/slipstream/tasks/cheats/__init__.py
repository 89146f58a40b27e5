"""Cheats: patches that try to get a reward without doing the work, each of which must be worth 0.

- base: what a cheat can use, and how it is defined
- plain: those that fool careless graders
- files, forging, running, answering, ending: those written against our reporter's own code
- suite: all of them
"""
