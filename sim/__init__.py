"""Discrete-event simulation of traces under a cost model."""
