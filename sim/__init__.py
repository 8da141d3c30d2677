"""Discrete-event simulation of traces under a cost model.

traces.py, generate.py   requests: from a file, or drawn from the statistics of one
hardware.py, cost.py     how long a step takes: data sheets and a roofline
engine.py                the loop: arrivals, schedule, time passes, commit
metrics.py, report.py    what is measured, and how it is told
"""
