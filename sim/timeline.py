"""One run as a timeline in the Chrome trace format, which Perfetto and chrome://tracing show.

Process 1 has a thread for each request (thread id: its number + 1) with slices `queued`, `prefill`, `decode` and `swapped`, one
after the other, and an arrow from each preemption to the resumption, with the mode. Process 2 has counters: GPU blocks used, and
requests that run, wait and are swapped. Times are simulated microseconds.

Written as it happens, so memory is bounded by the requests in the system. Times do not go backwards within a thread or a counter,
in the order of the file; between threads they may. A slice begins and ends with the steps that it belongs to: the time of a swap
is in the step that makes it, for `swapped` at its beginning and for `decode` at its end.
"""

import json
from typing import Any, TextIO

import attrs

from kvproof.scheduler import Outcome
from kvproof.sim.engine import DECODES, Simulation
from kvproof.sim.metrics import Metrics
from kvproof.store.plan import Plan
from kvproof.store.state import State

REQUESTS, SCHEDULER = 1, 2
"""Process ids."""


class Events:
    """The file: one event a line in one JSON object."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        stream.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        self.write({"ph": "M", "name": "process_name", "pid": SCHEDULER, "args": {"name": "scheduler"}}, "")
        self.write({"ph": "M", "name": "process_name", "pid": REQUESTS, "args": {"name": "requests"}})

    def write(self, event: dict[str, Any], comma: str = ",\n") -> None:
        """One event more."""
        self._stream.write(comma + json.dumps(event))

    def close(self) -> None:
        """The end of the object."""
        self._stream.write("\n]}\n")


@attrs.define
class Track:
    """The thread of a request that has not ended: the slice that is open, and the arrow that has begun (0: none)."""

    phase: str
    arrow: int = 0
    mode: str = ""


class TimelineSimulation(Simulation):
    """A simulation that writes its timeline to `stream`, which it does not close."""

    def __init__(self, stream: TextIO, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, fast_forward=False)  # it tells of every pass
        self.events = Events(stream)
        self.tracks: dict[int, Track] = {}
        self.arrows = 0
        self.counted: dict[str, dict[str, int]] = {}

    def run(self) -> Metrics:
        """Simulate, and complete the file: whoever has not ended is cut off at the end."""
        metrics = super().run()
        for row in list(self.tracks):
            self._close(row)
        self.events.close()
        return metrics

    def _event(self, row: int, ph: str, name: str, at_s: float, **more: Any) -> None:
        self.events.write({"ph": ph, "name": name, "pid": REQUESTS, "tid": row + 1, "ts": round(at_s * 1e6, 3), **more})

    def _open(self, row: int, phase: str, at_s: float, **arguments: Any) -> None:
        """The slice that is open ends, the next begins; an arrow that has begun and leads to work leads here."""
        track = self.tracks[row]
        self._event(row, "E", track.phase, at_s)
        self._event(row, "B", phase, at_s, args=arguments)
        track.phase = phase
        if phase in ("prefill", "decode"):
            self._arrive_at(row, at_s)

    def _arrive_at(self, row: int, at_s: float) -> None:
        track = self.tracks[row]
        if track.arrow:
            arguments = {"mode": track.mode}
            self._event(row, "f", "preemption", at_s, cat="preemption", id=track.arrow, bp="e", args=arguments)
            track.arrow = 0

    def _close(self, row: int) -> None:
        """The request has no more events."""
        self._arrive_at(row, self.now_s)
        self._event(row, "E", self.tracks.pop(row).phase, self.now_s)

    def _add(self, row: int) -> None:
        refused = self.metrics.refused
        super()._add(row)
        if self.metrics.refused > refused:
            return
        prompt_tokens, output_tokens = self.trace.prompt_tokens[row], self.trace.output_tokens[row]
        name = {"ph": "M", "name": "thread_name", "pid": REQUESTS, "tid": row + 1, "args": {"name": f"request {row}"}}
        self.events.write(name)
        self.tracks[row] = Track("queued")
        tokens = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
        self._event(row, "B", "queued", self.trace.arrivals_s[row], args=tokens)

    def _pass_time(self, plan: Plan) -> bool:
        start_s, live = self.now_s, self.live
        for g, mode in plan.preempted:
            row = live[g].row
            track = self.tracks[row]
            self.arrows += 1
            track.arrow, track.mode = self.arrows, mode
            self._event(row, "s", "preemption", start_s, cat="preemption", id=self.arrows, args={"mode": mode})
            self._open(row, "swapped" if mode == "swap" else "queued", start_s, mode=mode)
        for g in plan.resumed:
            self._open(live[g].row, "decode", start_s)
        for g, first, tokens in plan.prefills:
            if self.tracks[live[g].row].phase != "prefill":
                self._open(live[g].row, "prefill", start_s, first=first, tokens=tokens)
        self._count(self.scheduler.state, start_s)
        moved = super()._pass_time(plan)
        for g, _, _ in plan.prefills:
            if live[g].phase == DECODES:
                self._open(live[g].row, "decode", self.now_s)
        return moved

    def _end(self, outcome: Outcome) -> None:
        request = self.live.get(outcome.group)
        super()._end(outcome)
        if request is not None:
            self._close(request.row)

    def _count(self, state: State, at_s: float) -> None:
        """The counters, where they have changed."""
        running, swapped = len(state.running[1]), len(state.swapped[1])
        waiting = len(self.live) - running - swapped
        now = {
            "blocks": {"used": self.config.num_gpu_blocks - state.gpu_free},
            "requests": {"running": running, "waiting": waiting, "swapped": swapped},
        }
        for name, values in now.items():
            if self.counted.get(name) != values:
                self.events.write({"ph": "C", "name": name, "pid": SCHEDULER, "ts": round(at_s * 1e6, 3), "args": values})
        self.counted = now
