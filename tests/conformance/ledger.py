"""The books of a run, kept from its records and events alone: tokens, sequences and tables of every request, step by step.

Nothing of the scheduler is read but what it printed, so its counters cannot vouch for themselves. All live sequences of a
request have the same length: they advance together.
"""

from itertools import islice

from kvproof.formats import OF_CONFIG, Request, Scenario


def up(tokens: int, size: int) -> int:
    """Blocks for so many tokens."""
    return -(-tokens // size)


class Account:
    """What is known of one request: `length` is prompt + generated tokens, before the results of the step in the making."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.length = request.prompt_tokens
        self.live = [0]
        self.outputs: dict[int, int] = {}  # of the sequences that were dropped
        self.forks: list[tuple[int, int, int]] = []  # (child, parent, length)
        self.computed = 0  # of the prefill, since the last admission
        self.prefilling = True  # or it has yet to begin
        self.forced = False  # preempted by an event of this step
        self.over = False
        self.vague = False  # accepted drafts: how many tokens it got is not in the records

    @property
    def made(self) -> int:
        """Generated tokens of each live sequence."""
        return self.length - self.request.prompt_tokens

    def fork(self, parent: int) -> None:
        """A child that shares all of its parent."""
        child = len(self.live) + len(self.outputs)
        self.live.append(child)
        self.forks.append((child, parent, self.length))

    def drop(self, q: int) -> None:
        """One sequence ends; the request with the last one."""
        if self.live == [q]:
            self.over = True
        else:
            self.live.remove(q)
            self.outputs[q] = self.made

    def replay_bounds(self) -> tuple[int, int]:
        """Least and most tokens of a whole prefill: siblings share what lies before their fork, a shared tail perhaps."""
        own = sum(self.length - length for child, _, length in self.forks if child in self.live[1:])
        return self.length + own, self.length * len(self.live)

    def got_token(self) -> None:
        """Every live sequence has one token more, and decodes from now on."""
        self.length += 1
        self.prefilling = False


class Ledger:
    """The accounts of all requests. `step` once a record, then `close` with the end record."""

    def __init__(self, scenario: Scenario) -> None:
        self.config, self.strict = scenario.config, not scenario.config.vllm_v0
        self.size = scenario.config.block_size
        self.lookahead = getattr(scenario.config, "num_lookahead_slots", 0)
        self.accounts = {request.id: Account(request) for request in scenario.requests}
        arrivals = sorted(scenario.requests, key=lambda request: request.arrival_step)
        self.rank = {request.id: (request.priority, i) for i, request in enumerate(arrivals)}
        self.ranked = scenario.policy in OF_CONFIG  # other orders rank as they like
        self.denied = any(event.op == "deny_append" for event in scenario.events)
        self.denied |= getattr(scenario.config, "artificial_preemption", None) is not None
        self.events = iter(sorted(enumerate(scenario.events), key=lambda pair: pair[1].step))
        self.at = [event.step for event in sorted(scenario.events, key=lambda event: event.step)]

    def limit(self, request: Request) -> int:
        """Generated tokens at which each of its sequences ends."""
        if self.strict:
            return max(1, min(request.output_tokens, self.config.max_model_len - request.prompt_tokens))
        return request.output_tokens

    def step(self, record, previous) -> None:
        """Events, victims, tables, the plan, its results: in the order in which a step has them."""
        self._events(record)
        self._victims(record, previous)
        if self.strict and self.ranked:
            self._line(record, previous)
            self._oldest(record, previous)
        pieces = record["scheduled"][: record["num_prefills"]]
        decodes = {name for name, _ in record["scheduled"][record["num_prefills"] :]}
        for name, rows in record["tables"].items():
            self._table(name, rows, name in decodes)
        self._seats(record)
        done = {name for name, tokens in pieces if self._piece(name, tokens)}
        for name, tokens in record["scheduled"][record["num_prefills"] :]:
            assert tokens == 1 and not self.accounts[name].prefilling, f"{name} decodes in the middle of its prefill"
        self._results(record, done | decodes)

    def _events(self, record) -> None:
        """What happened to whom before the pass; skipped events did not."""
        self.left: set[str] = set()
        for account in self.accounts.values():
            account.forced = False
        now = sum(step <= record["step"] for step in self.at)
        del self.at[:now]
        for index, event in islice(self.events, now):
            account = self.accounts[event.id]
            if index in record.get("skipped_events", ()):
                continue
            assert not account.over, f"event {index}: {event.id} has ended"
            if event.op == "abort":
                account.over = True
            elif event.op == "fork":
                account.fork(event.parent)
            elif event.op == "finish_seq":
                account.drop(event.seq)
            if account.over:
                self.left.add(event.id)
            account.forced |= event.op == "preempt"
            account.vague |= event.op == "accept"

    def _victims(self, record, previous) -> None:
        """A victim ran, and is in the queue that its mode says; by recompute it has lost what was computed."""
        for name, mode in record["preempted"]:
            assert previous is not None and name in previous["queues"]["running"]
            assert name in record["queues"]["waiting" if mode == "recompute" else "swapped"]
            if mode == "recompute":
                self.accounts[name].prefilling, self.accounts[name].computed = True, 0
        for name in record["ignored"]:
            self.accounts[name].over = True

    def _line(self, record, previous) -> None:
        """Profile kvproof: whoever begins or comes back ranks before all who wait or are swapped."""
        before = previous["queues"]["running"] if previous else ()
        entered = [self.rank[name] for name in record["queues"]["running"] if name not in before]
        outside = [self.rank[name] for name in (*record["queues"]["waiting"], *record["queues"]["swapped"])]
        assert not entered or not outside or max(entered) < min(outside), "somebody in line was passed"

    def _oldest(self, record, previous) -> None:
        """Profile kvproof: nobody but an event preempts the first in policy order."""
        arrived = {name for r in (record, previous) if r for names in r["queues"].values() for name in names}
        first = min((name for name in arrived if not self.accounts[name].over), key=self.rank.__getitem__, default=None)
        if first is not None and not self.accounts[first].forced and not self.denied:
            assert first not in dict(record["preempted"]), f"{first} was preempted, the first in policy order"

    def _table(self, name: str, rows: list[list[int]], decodes: bool) -> None:
        """A row for each live sequence, the blocks for its tokens and none beyond; siblings share what lay before their fork."""
        account = self.accounts[name]
        self._siblings(account, len(rows))
        assert len(rows) == len(account.live), f"{name} has {len(rows)} tables for {len(account.live)} sequences"
        if account.vague:
            return
        if account.prefilling:
            assert len(rows) > 1 or len(rows[0]) == up(account.length, self.size)
            return
        written = account.length if decodes else account.length - 1
        for row in rows:
            assert up(written, self.size) <= len(row) <= up(written + self.lookahead, self.size), f"{name}: table of {len(row)}"
        at = dict(zip(account.live, rows, strict=True))
        for child, parent, length in account.forks:
            if child in at and parent in at:
                shared = (length - 1) // self.size
                assert at[child][:shared] == at[parent][:shared], f"{name}: siblings do not share"
        if decodes:
            tails = [row[(account.length - 1) // self.size] for row in rows]
            assert len(set(tails)) == len(tails), f"{name}: two sequences write block {tails}"

    def _siblings(self, account: Account, count: int) -> None:
        """V0 leaves out siblings for which there is no seat after the first token: how many there are is not known before."""
        if not self.strict and account.made == 1 and not account.forks and account.request.n > 1:
            assert count <= account.request.n
            for _ in range(count - 1):
                account.fork(0)

    def _seats(self, record) -> None:
        """I6: sequences in the budget; kvproof counts those that a request has yet to fork too."""
        seats = 0
        for name in record["queues"]["running"]:
            account = self.accounts[name]
            yet = self.strict and not account.made and not account.forks
            seats += account.request.n if yet else len(account.live)
        assert seats <= self.config.max_num_seqs

    def _piece(self, name: str, tokens: int) -> bool:
        """A piece of a prefill; was it the last one?"""
        account = self.accounts[name]
        if not account.prefilling and account.computed and len(account.live) > 1:
            account.length -= 1  # it took all for the last piece, but its siblings' tokens were still to come
            account.prefilling = True
        assert account.prefilling, f"{name} has its prefill already"
        account.computed += tokens
        if account.vague:
            return True
        least, most = account.replay_bounds()
        assert account.computed <= most, f"{name}: {account.computed} tokens computed, it has {most}"
        return account.computed >= least

    def _results(self, record, names: set[str]) -> None:
        """Whoever is in the plan for a token gets it; who has all its tokens ends in this step, and nobody else."""
        ended = set()
        for name in names:
            account = self.accounts[name]
            first = not account.made
            account.got_token()
            if account.made >= self.limit(account.request):
                account.over = True
                ended.add(name)
            elif first and self.strict:
                for _ in range(account.request.n - 1):
                    account.fork(0)
        known = {name for name in self.accounts if not self.accounts[name].vague} - self.left
        assert ended & known == set(record["finished"]) & known, f"finished {record['finished']}, have their tokens: {ended}"

    def close(self, last) -> None:
        """I3, I5: the end record says of each sequence what the plans add up to."""
        for name, account in self.accounts.items():
            if not account.vague:
                self._siblings(account, len(last["requests"][name]["output_tokens"]))
                outputs = account.outputs | dict.fromkeys(account.live, account.made)
                assert last["requests"][name]["output_tokens"] == [outputs[q] for q in sorted(outputs)]
                assert account.over
