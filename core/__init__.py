"""The state machine that schedules, preempts and owns KV blocks. attrs and the standard library only.

Every function here edits a *draft* `d` in place and is run twice: by engines on the concrete draft of
`kvproof.store`, and by `kvproof.proofs` on a symbolic one. Nothing here knows which of the two it is.
Start with `schedule.py` (the pass) and `running.py` (the preemption loop).
"""
