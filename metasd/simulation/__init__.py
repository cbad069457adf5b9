"""Stopping-time regret without models: the shipped policies in made-up worlds, many seeds, and the theory's curves."""

from metasd.simulation.play import Trace, play
from metasd.simulation.world import SETTINGS, Setting, World

__all__ = ["SETTINGS", "Setting", "Trace", "World", "play"]
