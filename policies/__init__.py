"""Choices that nothing depends on for safety: what a preemption costs, who makes way, in what order requests rank.

Imports kvproof.store (for types), attrs and the standard library only. docs/policies.md says how to write one.
"""
