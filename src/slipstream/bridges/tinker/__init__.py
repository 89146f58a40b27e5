"""Training on a server of the Tinker API: LoRA there, rollouts here.

`client` alone imports the SDK; `learner` and `completer` see it through `seam`, `data` and `order` are pure.
"""
