"""Discrete-event simulation of traces under a cost model.

traces.py, generate.py   requests: from a file, or drawn from the statistics of one
hardware.py, cost.py     how long a step takes: data sheets and a roofline
baselines.py             who decides: the scheduler, or a gate before it
engine.py                the loop: arrivals, schedule, time passes, commit
meter.py                 what `auto` is told of the times of steps
metrics.py, series.py    what is measured
report.py, files.py      how it is told, and written
timeline.py              one run for Perfetto
sweep.py                 many runs: variants, pool sizes, loads; sweep_table.py, sweep_page.py tell of them
"""
