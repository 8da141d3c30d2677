"""Priorities: who was displaced, for whom, and whether that was right. And why victims went, where it can be told."""

from kvproof.fuzz.faults import equal, fault
from kvproof.fuzz.passes import Pass


def in_line(p: Pass) -> list[int]:
    """Who waits or is swapped when the pass makes room for the first of them, in order.

    Those that it refuses have gone by then, unless prompts are cut or the delay has kept the pass from looking at them.
    V0 makes room for whoever stands first of those that wait, whom it recomputed before all others.
    """
    ended = dict(p.plan.ended)
    if p.config.vllm_v0:
        back = [g for g, mode in p.plan.preempted if g in p.forced and mode == "recompute"]
        return [g for g in (*reversed(back), *p.before.waiting[1]) if g not in ended]
    looked = not p.config.enable_chunked_prefill and p.waited(p.before.waiting[1])
    gone = {g for g in ended if looked or (g in p.forced and g not in dict(p.plan.preempted))}
    return sorted({*p.before.waiting[1], *p.before.swapped[1], *p.forced} - gone, key=p.m.rank)


def displaced(p: Pass) -> bool:
    """Is it certain that all victims that no event named made way for the head of the line? None had to for want of blocks."""
    c = p.config
    if not c.priority or not p.chosen or p.asked or not in_line(p):
        return False
    if c.vllm_v0:
        sequences = sum(len(p.m.groups[g].live) for g in p.before.running[1])
        calm = p.free >= sequences * (2 + p.blocks(2 * c.num_lookahead_slots))
        return calm and not c.enable_chunked_prefill
    stayed = [g for g in p.before.running[1] if g not in p.forced]
    calm = p.wanted(p.decoders()) <= p.free + p.held(p.forced) - p.kept_before(stayed)
    return calm or (not c.enable_chunked_prefill and bool(p.admitted))


def check(p: Pass) -> None:
    """All rank below the head. kvproof: it has room without them all but not without the last."""
    if not displaced(p):
        return
    head, went, c, groups = in_line(p)[0], p.went, p.config, p.m.groups
    equal(f"displaced for {head}, who rank above it", [g for g in went if p.m.rank(g) < p.m.rank(head)], [])
    if c.vllm_v0:
        return
    if head in p.forced:
        fault("displaced", f"{went} for {head}, which was preempted by force")
    if head in dict(p.plan.ended):
        fault("displaced", f"{went} for {head}, which can never come in")
    need = p.takes(head)
    if head in p.before.swapped[1]:
        need = p.held([head]) + (p.needs(head) if p.before.computed[head] == p.before.length[head] else 0)
    need = p.entry(head, need)
    taken = [g for g in p.before.running[1] if g not in p.forced]

    def room(gone: list[int]) -> bool:
        """Would the head come in if these made way?"""
        stay = [g for g in taken if g not in gone]
        free = p.free + p.held(p.forced) + p.held(gone) - p.kept_before(stay) - need
        seats = sum(groups[g].seats for g in stay) + groups[head].seats
        return free >= (c.watermark_blocks if stay else 0) and seats <= c.max_num_seqs

    if room(went[:-1]):
        fault("displaced", f"{went} for {head}, the last for nothing")
    if not room(went):
        fault("displaced", f"{went} for {head}, which has no room all the same")
    if head in p.after.waiting[1] and not c.enable_chunked_prefill:
        fault("displaced", f"{went} for {head}, which does not come in all the same")


def cause(p: Pass) -> str:
    """Why the victims that no event named went: the words of the report."""
    if displaced(p):
        return "for priority"
    denied = p.after.denied > p.before.denied or p.after.deny.to_dict() != p.before.deny.to_dict()
    enough = p.wanted(p.decoders()) <= p.free - p.kept_before(p.before.running[1]) and not p.config.vllm_v0
    if p.config.priority and in_line(p):
        return "for blocks or priority"
    if denied:
        return "by a denial" if enough else "for blocks or by a denial"
    return "for blocks"
