"""Symbolic executor, loop rules, obligations, refuter, mutation audit."""
