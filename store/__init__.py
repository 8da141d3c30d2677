"""The concrete data that `kvproof.core` edits: persistent collections, the immutable State and its Draft, the Plan.

These are the *concrete readings* of the collections; `kvproof.proofs.shapes` holds the symbolic ones. That the two agree is
trusted, and tested by Hypothesis (TRUSTED.md).
"""
