"""What the quantifiers of the specification range over: symbolically all integers, on a concrete state the part that matters."""

ARITY = {
    "group": 1,
    "groups": 2,
    "neighbours": 2,
    "sequence": 2,
    "siblings": 3,
    "slot": 3,
    "block": 1,
    "reference": 2,
    "due": 2,
}
"""Domain -> number of variables.

group: g. groups: g, h. neighbours: g, h in one queue.
sequence: (g, q). siblings: (g, p, q) of one group. slot: (g, q, i). block: b (host blocks too).
reference: (b, k). due: (clock, g).
"""
