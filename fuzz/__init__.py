"""Stateful fuzzing of the whole system: scheduler, fake backend and fake model, against every clause of `kvproof.spec`.

setup.py     what a run starts from; draws.py: how that is drawn; scenes.py: rare beginnings
orders.py    who comes first; what the order says, the engine hears
names.py     what a log calls a request
memory.py    what the engine knows, without asking the scheduler
engine.py    operations on requests and the two of a step; world.py: one run of them by name, with all checks and a log
between.py   what must be true between two calls; passes.py, priorities.py: of a pass, from what the engine knows
happened.py  what a pass did: the events that the report counts
machine.py   Hypothesis chooses the operations; hands.py: what a rule can do
shrink.py    a failing run made short; report.py, scenario.py: as a Python script and as a scenario for `kvproof replay`
loop.py      the machine for a given time: `kvproof fuzz`
"""
