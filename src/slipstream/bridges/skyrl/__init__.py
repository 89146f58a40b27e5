"""SkyRL-train 0.4.0: it trains, and our dispatcher makes its rollouts.

`generator:SlipstreamGenerator` is its GeneratorInterface, `main` its entry point with that generator in it.
"""
