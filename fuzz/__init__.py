"""Stateful fuzzing of the whole system: scheduler, fake backend and fake model, against every clause of `kvproof.spec`.

setup.py    what a run starts from: a small configuration, a preemption policy
world.py    one run: operations by name, all checks after each of them, a log that runs again
machine.py  Hypothesis chooses the operations and shrinks what fails
report.py   a failure as a Python script and, where the format can say it, as a scenario for `kvproof replay`
loop.py     the machine for a given time: `kvproof fuzz`
"""
