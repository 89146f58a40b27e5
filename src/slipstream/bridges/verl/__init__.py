"""verl 0.9.1: it trains, and our dispatcher makes its rollouts.

`manager:SlipstreamManager` is verl's agent loop manager of its v1 trainers: a whole batch goes to one dispatcher, and a
rollout may come back as several sequences. `loop:SlipstreamAgentLoop` is an agent loop for single rows. `main` starts
verl's own trainer with the first.
"""
