"""Drafters for a target of the user's own, and a router: its answers, what can be learned, and the measure of that."""

from metasd.registry import Registry

TRAINERS = Registry(
    "kind",
    {
        "ngram-lm": "metasd.training.ngram_lm:train",
        "eagle": "metasd.training.eagle_run:train",
        "lm": "metasd.training.lm:train",
        "router": "metasd.training.router:train",
    },
)
"""What `metasd train` makes. A trainer is called with a Job and its options, and returns the facts of its run."""
