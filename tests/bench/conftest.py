"""Toy models on one thread."""

from toy_fixtures import one_thread, toy_folder

__all__ = ["one_thread", "toy_folder"]
