"""Stateful fuzzing of the whole system."""
