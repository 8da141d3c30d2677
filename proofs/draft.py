"""The symbolic draft: every attribute and method that `kvproof.core` uses of `kvproof.store.draft.Draft`, on z3 values."""

from collections.abc import Callable
from typing import Any

import z3

from kvproof.proofs.block_shapes import ZMembers, ZRefs, ZStack, ZTable, assume, prove
from kvproof.proofs.plan_shape import ZPlan
from kvproof.proofs.shapes import ZCalendar, ZQueue, ZSum, ZTwin
from kvproof.proofs.sym import Dual, SBool, SInt, ZMap, forall, fresh, fresh_bool, quantified, raw, run, same_version
from kvproof.spec.displacing import in_policy_order
from kvproof.spec.domains import ARITY
from kvproof.spec.logic import both, choose, either, implies, negate
from kvproof.spec.promises import may_go
from kvproof.store.measures import RANKS

SPAN = z3.Function("span", z3.IntSort(), z3.IntSort())
BLOCKS = z3.Function("blocks_for", z3.IntSort(), z3.IntSort())
FULL = z3.Function("full_blocks", z3.IntSort(), z3.IntSort())
TIMES = z3.Function("times", z3.IntSort(), z3.IntSort(), z3.IntSort())
WORK = z3.Function("work", z3.IntSort(), z3.IntSort(), z3.IntSort())
CEILING = z3.Function("ceiling", z3.IntSort(), z3.IntSort(), z3.IntSort())
ROWS = z3.Function("rows", z3.IntSort(), z3.IntSort(), z3.IntSort())
TRUTHS = ("issued", "prefilled", "granted", "stopped", "testing", "delay", "marked")
SCALARS = ("clock", "ticket", "seqs", "decoders", "spent", "charged", "epoch", "owing", *TRUTHS)
MAPS = (
    *("status", "key", "prompt", "length", "computed", "limit", "born", "seats", "reserve", "priority", "ungiven"),
    *("preemptions", "alarm", "expires"),
)
QUEUES = ("waiting", "running", "swapped", "prefilling", "sampling", "idle")
SHAPES = ("members", "table", "refs", "due", "expiry", "gpu", "cpu", "owed", *QUEUES)
ALL = (*SCALARS, *MAPS, *SHAPES, "plan", "twin")


class ZKey(ZMap):
    """The keys of the queues: written only while the group is in none of them."""

    queues: tuple[ZQueue, ...] = ()

    def __setitem__(self, k: Any, v: Any) -> None:
        for q in self.queues:
            prove(f"requires: a key changes outside the queues ({q.has_.name})", negate(q.has_[k]))
        super().__setitem__(k, v)


class ZSeats(ZMap):
    """Seats of a group: a queue that it is in weighs so much more or less."""

    queues: tuple[ZQueue, ...] = ()

    def __setitem__(self, k: Any, v: Any) -> None:
        for q in self.queues:
            q.weight = q.weight + choose(q.has_[k], v - self[k], 0)
        super().__setitem__(k, v)


def _ceiling(seats: SInt, limit: SInt) -> SInt:
    return SInt(CEILING(seats.e, limit.e))


KINDS: dict[str, Any] = {"key": ZKey, "seats": ZSeats}


FLAGS = ("enable_chunked_prefill", "priority", "choose_victims", "vllm_v0")


class ZConfig:
    """Any configuration that `Config` accepts."""

    def __init__(self) -> None:
        for name in ("num_gpu_blocks", "num_cpu_blocks", "block_size", "watermark_blocks", "max_num_seqs"):
            setattr(self, name, fresh(name))
        self.max_num_batched_tokens, self.max_model_len = fresh("max_num_batched_tokens"), fresh("max_model_len")
        self.num_lookahead_slots = fresh("num_lookahead_slots")
        self.bounded, self.max_preemptions_per_request = fresh_bool("bounded"), fresh("max_preemptions_per_request")
        for name in FLAGS:
            setattr(self, name, fresh_bool(name))


class AnyPolicy:
    """A policy may answer anything."""

    def swaps(self, g: Any, sequences: Any) -> SBool:
        """Anything."""
        return fresh_bool("policy")


class ZDraft:
    """A state about which nothing is known but the contracts of its collections. Loops go to `rules`."""

    def __init__(self, rules: Any) -> None:
        self.rules = rules
        self.config = ZConfig()
        self.clock, self.ticket = fresh("clock"), fresh("ticket")
        self.seqs, self.decoders = fresh("seqs"), fresh("decoders")
        self.spent, self.charged, self.epoch = fresh("spent"), fresh("charged"), fresh("epoch")
        for name in TRUTHS:
            setattr(self, name, fresh_bool(name))
        for name in MAPS:
            setattr(self, name, KINDS.get(name, ZMap)(name))
        self.members = ZMembers()
        self.refs = ZRefs(self.config.num_gpu_blocks)  # type: ignore[attr-defined]
        self.table = ZTable(self.refs, self.members, self.span)
        self.due, self.expiry = ZCalendar("due", self.alarm), ZCalendar("expiry", self.expires)  # type: ignore[attr-defined]
        self.gpu, self.cpu = ZStack("gpu"), ZStack("cpu")
        self.owing, self.owed = fresh("owing"), ZSum("owed")
        key: ZMap = self.key  # type: ignore[attr-defined]
        for name in QUEUES:
            setattr(self, name, ZQueue(name, key, self.members, self.seats))  # type: ignore[attr-defined]
        self.plan, self.twin, self.policy = ZPlan(), ZTwin(), AnyPolicy()
        self._wire()
        assume(SBool(z3.IntVal(0) == SPAN(0)))

    def midway(self) -> "ZDraft":
        """The same in the middle of a pass: anything may be planned already."""
        self.plan.havoc()
        return self

    def _wire(self) -> None:
        """Shapes that read each other must read this draft's."""
        self.table.refs, self.table.members = self.refs, self.members
        self.refs.table = self.table
        self.table.plan = self.plan
        self.gpu.refs = self.cpu.refs = self.refs
        self.due.at, self.expiry.at = self.alarm, self.expires  # type: ignore[attr-defined]
        queues = tuple(getattr(self, n) for n in QUEUES)
        for q in queues:
            q.key, q.members, q.seats = self.key, self.members, self.seats  # type: ignore[attr-defined]
        self.key.queues = self.seats.queues = queues  # type: ignore[attr-defined]
        self.members.queues = queues

    def snap(self) -> Any:
        """A copy that later edits do not change."""
        new: Any = object.__new__(ZDraft)
        new.__dict__.update(self.__dict__)
        for name in (*MAPS, *SHAPES, "plan", "twin"):
            setattr(new, name, getattr(self, name).snap())
        new._wire()
        return new

    def forall(self, domain: str, body: Any, patterns: Any = None) -> SBool:
        """For all tuples of a domain of the specification: here, all integers."""
        return forall(ARITY[domain], body, patterns)

    def uniform(self, condition: Any, value: Any, patterns: Any) -> Dual:
        """Sequences of one group that satisfy the condition have one value. Assumed through a function of the group."""
        common = ZMap("common")
        proved = forall(3, lambda g, p, q: implies(both(condition(g, p), condition(g, q)), value(g, p) == value(g, q)))
        return Dual(proved, forall(2, lambda g, q: implies(condition(g, q), value(g, q) == common[g]), patterns))

    def havoc(self, names: Any) -> None:
        """Forget these parts."""
        for name in names:
            if name in SCALARS:
                setattr(self, name, fresh_bool(name) if name in TRUTHS else fresh(name))
            else:
                getattr(self, name).havoc()

    def versions(self) -> dict[str, Any]:
        """What identifies the contents of each part."""
        out: dict[str, Any] = {name: getattr(self, name) for name in SCALARS}
        out.update({name: getattr(self, name).read for name in MAPS})
        out.update({name: getattr(self, name).version() for name in (*SHAPES, "plan", "twin")})
        return out

    # block_size * blocks, through the laws that are needed: it is strictly monotone in steps of block_size
    def span(self, blocks: Any) -> SInt:
        """Slots of `blocks` blocks."""
        e = blocks.e if isinstance(blocks, SInt) else z3.IntVal(blocks)
        if not quantified():
            size = self.config.block_size.e  # type: ignore[attr-defined]
            assume(SBool(z3.And(SPAN(e + 1) == SPAN(e) + size, SPAN(e) == SPAN(e - 1) + size)))
        return SInt(SPAN(e))

    def capacity(self, g: Any) -> SInt:
        """Slots in the tables of g."""
        return self.span(self.table.height(g))

    @staticmethod
    def span_rises() -> SBool:
        """More blocks have more slots (`lemmas.py`)."""
        a, b = z3.Ints("a b")
        rises = z3.Implies(a <= b, SPAN(a) <= SPAN(b))
        return SBool(z3.ForAll([a, b], rises, patterns=[z3.MultiPattern(SPAN(a), SPAN(b))]))

    def blocks_for(self, tokens: Any) -> SInt:
        """The least number of blocks that holds the tokens (at least one token)."""
        prove("requires: blocks_for: at least one token", tokens >= 1)
        return self.blocks_of(tokens)

    def full_blocks(self, tokens: Any) -> SInt:
        """The most blocks that the tokens fill."""
        prove("requires: full_blocks: not less than no token", tokens >= 0)
        return self.full_of(tokens)

    def slots_for(self, tokens: Any) -> SInt:
        """The slots of so many blocks. Law (`lemmas.py`): whatever number of blocks holds the tokens has no fewer."""
        slots, n = self.span(self.blocks_for(tokens)), z3.Int("n")
        assume(SBool(z3.ForAll([n], z3.Implies(tokens.e <= SPAN(n), slots.e <= SPAN(n)), patterns=[SPAN(n)])))
        return slots

    def blocks_of(self, tokens: Any) -> SInt:
        """blocks_for, where a clause asks for it: of no tokens it says nothing."""
        r = SInt(BLOCKS(tokens.e))
        assume(implies(tokens >= 1, both(r >= 1, self.span(r) >= tokens, self.span(r - 1) < tokens)))
        return r

    def full_of(self, tokens: Any) -> SInt:
        """full_blocks, where a clause asks for it: of a negative number it says nothing."""
        r = SInt(FULL(tokens.e))
        assume(implies(tokens >= 0, both(r >= 0, self.span(r) <= tokens, self.span(r + 1) > tokens)))
        return r

    def per_sequence(self, g: Any, blocks: Any) -> SInt:
        """`blocks` for each live sequence of g: a product, of which no more is known than what it is for one."""
        n = self.members.n[g]
        b = blocks.e if isinstance(blocks, SInt) else z3.IntVal(blocks)
        product = SInt(TIMES(n.e, b))
        if not quantified():
            assume(
                both(implies(n == 1, product == blocks), implies(blocks == 1, product == n), implies(blocks == 0, product == 0))
            )
            assume(both(implies(both(n >= 0, blocks >= 0), product >= 0), implies(both(n >= 0, blocks >= 1), product >= n)))
        return product

    def work(self, g: Any, tokens: Any) -> SInt:
        """Different tokens of the live sequences of g: a function of their line. Law: not less than those of the first one."""
        n, several = self.members.n[g], SInt(WORK(self.members.line[g].e, tokens.e))
        if not quantified():
            assume(implies(n >= 2, several >= tokens))
        return choose(n == 1, tokens, several)  # type: ignore[no-any-return]

    def rows(self, g: Any, tokens: Any) -> SInt:
        """Blocks of the tables of g, in which common ones are shared. Law: not less than those of the first one."""
        n, several, one = self.members.n[g], SInt(ROWS(self.members.line[g].e, tokens.e)), self.blocks_of(tokens)
        if not quantified():
            assume(implies(n >= 2, several >= one))
        return choose(n == 1, one, several)  # type: ignore[no-any-return]

    # Bounded preemption.

    @property
    def bounded(self) -> SBool:
        """Is there a limit to how often a request is preempted?"""
        return self.config.bounded

    @property
    def most_preemptions(self) -> SInt:
        """The limit, if there is one."""
        return self.config.max_preemptions_per_request

    def may_go(self, g: Any) -> Any:
        """May g be preempted?"""
        return may_go(self, g)

    def ceiling(self, g: Any) -> SInt:
        """Blocks of whole tables for all seats of g: a function of these and of its limit. Law: not less for more seats."""
        seats, limit = self.seats[g], self.limit[g]  # type: ignore[attr-defined]
        if not quantified():
            assume(_ceiling(seats, limit) <= _ceiling(seats + 1, limit))
        return _ceiling(seats, limit)

    def last_below(self, g: Any) -> Any:
        """The last that runs, ranks below g, and may be preempted; g if there is none."""
        running, key = self.running, self.key  # type: ignore[attr-defined]

        def make() -> Any:
            w = fresh("last_below")

            def fit(t: Any) -> Any:
                return both(running.has_[t], may_go(self, t), key[g] < key[t])

            last = forall(1, lambda t: implies(fit(t), both(w != g, key[t] <= key[w])), lambda t: [[running.has_[t]]])
            assume(both(either(w == g, fit(w)), last))
            return w

        return self._once("last_below", (raw(g), running.has_.read, key.read, self.preemptions.read), make)  # type: ignore[attr-defined]

    # Priorities.

    ranks = RANKS

    def rank(self, g: Any) -> SInt:
        """The place of g in policy order."""
        return self.priority[g] * RANKS + g  # type: ignore[attr-defined, no-any-return]

    def behind(self, g: Any) -> tuple[SInt, SInt]:
        """Blocks and seats of the running groups that rank below g and may be preempted."""

        def make() -> tuple[SInt, SInt]:
            blocks, seats = fresh("blocks_behind"), fresh("seats_behind")
            assume(both(blocks >= 0, seats >= 0))
            return blocks, seats

        return self._once("behind", self._about(g), make)  # type: ignore[no-any-return]

    def tokens_before(self, g: Any) -> SInt:
        """Tokens that the running groups which rank above g ask for."""

        def make() -> SInt:
            tokens = fresh("tokens_before")
            assume(tokens >= 0)
            return tokens

        return self._once("before", self._about(g), make)  # type: ignore[no-any-return]

    def _about(self, g: Any) -> tuple[Any, ...]:
        """g, and all that a sum over the running groups can depend on."""
        return raw(g), *[v for name, v in self.versions().items() if name not in ("delay", "spent", "plan")]

    @staticmethod
    def _once(name: str, about: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Asked again of the same, the same answer."""
        answers = run().notes.setdefault("once " + name, [])
        for then, answer in answers:
            if same_version(about, then):
                return answer
        answers.append((about, make()))
        return answers[-1][1]

    def rekey(self, g: Any, key: Any) -> None:
        """Another key. Obligation: nobody else in a queue that g is in has it."""
        for q in (getattr(self, name) for name in QUEUES):
            taken = forall(1, lambda t, q=q: implies(both(q.has_[t], self.key[t] == key), t == g), lambda t, q=q: [[q.has_[t]]])  # type: ignore[attr-defined]
            prove(f"requires: rekey: nobody else has this key ({q.has_.name})", implies(q.has_[g], taken))
        ZMap.__setitem__(self.key, g, key)  # type: ignore[attr-defined]

    # What the policy says.

    def swaps(self, g: Any) -> SBool:
        """What it wishes."""
        return self.policy.swaps(g, self.members.count(g))

    def named(self, g: Any, blocks: Any) -> Any:
        """Anything."""
        name = run().notes["named"] = run().notes.get("named", fresh("named"))
        return name

    def sort_running(self) -> None:
        """What runs, in policy order."""
        self._arrange("running")
        assume(in_policy_order(self, "running"))

    def sort_waiting(self) -> None:
        """What waits, in policy order."""
        self._arrange("waiting")
        assume(in_policy_order(self, "waiting"))

    def arrange_running(self, standing: Any) -> None:
        """What runs, in any order."""
        self._arrange("running")

    def _arrange(self, name: str) -> None:
        """New keys behind all others, or the old ones, for those in the queue."""
        queue = getattr(self, name)
        old, ticket = self.key.snap(), self.ticket  # type: ignore[attr-defined]
        self.key.havoc()  # type: ignore[attr-defined]
        self.ticket = fresh("ticket")
        key = self.key  # type: ignore[attr-defined]

        def there(g: Any) -> Any:
            return choose(queue.has_[g], both(key[g] >= ticket, key[g] < self.ticket), key[g] == old[g])

        def apart(g: Any, h: Any) -> Any:
            return implies(both(queue.has_[g], queue.has_[h], key[g] == key[h]), g == h)

        same = forall(1, lambda g: key[g] == old[g], lambda g: [[key[g]]])
        new = both(forall(1, there, lambda g: [[key[g]]]), forall(2, apart, lambda g, h: [[key[g], key[h]]]))
        assume(both(self.ticket >= ticket, either(both(self.ticket == ticket, same), new)))

    # Several passes in one draft.

    def siblings(self) -> SBool:
        """Anything, as in `due_count`; what is proved of a pass does not depend on it."""
        return self._once("siblings", self.members.version(), lambda: fresh_bool("siblings"))  # type: ignore[no-any-return]

    def due_count(self) -> SInt:
        """Anything, but asked again of the same state the same."""
        return self._once("due", (raw(self.clock), self.due.has_.read), lambda: fresh("due_count"))  # type: ignore[no-any-return]

    def expiring(self, t: Any) -> SBool:
        """Anything, as in `due_count`."""
        return self._once("expiring", (raw(t).sexpr(), self.expiry.has_.read), lambda: fresh_bool("expiring"))  # type: ignore[no-any-return]

    def idle_steps(self, most: Any) -> SInt:
        """A number of steps in which no bucket has anybody in it."""
        n, clock = fresh("idle_steps"), self.clock
        run().notes["idle_steps"] = n
        due, expiry = self.due, self.expiry
        assume(both(n >= 0, n <= most))
        for calendar, first in ((due, clock), (expiry, clock + 1)):

            def empty(t: Any, g: Any, has: ZMap = calendar.has_, first: Any = first) -> SBool:
                return negate(both(first <= t, t < first + n, has[t, g]))  # type: ignore[no-any-return]

            assume(forall(2, empty, lambda t, g, has=calendar.has_: [[has[t, g]]]))
        return n

    def next_plan(self) -> None:
        """Nothing is planned; what the engine has been told stays."""
        told, told_n = self.plan.told, self.plan.told_n
        self.plan = ZPlan()
        self.plan.told, self.plan.told_n = told, told_n
        self.spent, self.charged = fresh("spent"), fresh("charged")
        self._wire()

    # Delay, and tests of engines.

    def delayed(self) -> SBool:
        """Anything, but the same for the same that wait."""
        waiting: ZQueue = self.waiting  # type: ignore[attr-defined]
        answer: SBool = self._once("delay", waiting.version(), lambda: fresh_bool("delay"))
        self.delay = run().notes["delayed"] = answer
        return answer

    def mark_admission(self) -> None:
        """The pass has admitted somebody."""
        self.marked = True

    def denies(self, g: Any) -> SBool:
        """Anything."""
        answer: SBool | None = run().notes.get("denied")
        return fresh_bool("denied") if answer is None else answer

    def refuse_appends(self, g: Any, count: Any) -> None:
        """Only who asks for it is known here."""
        run().notes.setdefault("refused", []).append((g, count))

    def drop_group(self, g: Any) -> None:
        """Every map forgets g."""
        run().notes.setdefault("forgotten", []).append(g)
        for name in MAPS:
            if name == "status":
                self.status[g] = 0  # type: ignore[attr-defined]
            elif name in KINDS:
                ZMap.__setitem__(getattr(self, name), g, fresh("unknown"))
            else:
                getattr(self, name)[g] = fresh("unknown")

    def repeat(self, name: str, step: Any, *args: Any) -> None:
        """While step."""
        self.rules.repeat(name, self, step, *args)

    def times(self, name: str, n: Any, body: Any, *args: Any) -> None:
        """n times."""
        self.rules.times(name, self, n, body, *args)

    def each_index(self, name: str, n: Any, body: Any, *args: Any) -> None:
        """For i in range(n)."""
        self.rules.each_index(name, self, n, body, *args)

    def each_member(self, name: str, g: Any, body: Any) -> None:
        """For live sequences, ascending."""
        self.rules.each_member(name, self, g, body)

    def each_kin(self, name: str, g: Any, body: Any, *args: Any) -> None:
        """For live sequences, each after its origin."""
        self.rules.each_kin(name, self, g, body, *args)

    def each_due(self, name: str, body: Any) -> None:
        """For those whose alarm rings."""
        self.rules.sweep(name, self, lambda d, g: d.due.has_[d.clock, g], body, ordered=True)

    def each_running(self, name: str, body: Any) -> None:
        """For all that run."""
        self.rules.sweep(name, self, lambda d, g: d.running.has_[g], body, ordered=True)

    def each_expiring(self, name: str, body: Any) -> None:
        """For those in the expiry bucket of now."""
        self.rules.sweep(name, self, lambda d, g: d.expiry.has_[d.clock, g], body, ordered=False)

    def each(self, name: str, ids: Any, body: Any) -> None:
        """For a set of groups."""
        self.rules.each(name, self, ids, body)

    def each_pair(self, name: str, pairs: Any, body: Any) -> None:
        """For any finite list of pairs."""
        self.rules.each_pair(name, self, pairs, body)

    def each_item(self, name: str, items: Any, body: Any, *args: Any) -> None:
        """For every group and its number."""
        self.rules.each_item(name, self, items, body, *args)
