"""Other engines' signatures over the fused `verify`: one module for each engine, so that one import line changes.

Nothing is imported here, and no adapter imports the engine whose signature it has. Each docstring names the file and
version that it follows. A value that asks for something else than what `verify` does raises a ValueError. `status` has
no place in these signatures; who needs it, or logits instead of probabilities, calls `verify`.
"""
