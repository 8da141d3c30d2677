"""Executes plans on host memory, with shadow state that catches any misuse."""
