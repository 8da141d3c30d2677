"""Priorities: who was displaced, for whom, and whether that was right. And why victims went, where it can be told."""

from kvproof.fuzz.faults import equal, fault
from kvproof.fuzz.passes import Pass


def in_line(p: Pass) -> list[int]:
    """Who waits or is swapped when the pass makes room for the first of them, in order.

    With chunked prefill nobody has been refused by then.
    """
    gone = set() if p.config.enable_chunked_prefill else {g for g, _ in p.plan.ended}
    return sorted({*p.before.waiting[1], *p.before.swapped[1], *p.forced} - gone, key=p.m.rank)


def displaced(p: Pass) -> bool:
    """Is it certain that all victims that no event named made way for the head of the line? None had to for want of blocks."""
    if not p.config.priority or not p.chosen or p.asked or not in_line(p):
        return False
    if p.config.vllm_v0:
        sequences = sum(len(p.m.groups[g].live) for g in p.before.running[1])
        return (
            p.before.gpu_free >= sequences * (2 + p.blocks(p.config.num_lookahead_slots)) and not p.config.enable_chunked_prefill
        )
    calm = sum(p.needs(g) for g in p.decoders()) <= p.before.gpu_free + p.held(p.forced)
    return calm or (not p.config.enable_chunked_prefill and bool(p.admitted))


def check(p: Pass) -> None:
    """kvproof: all rank below the head, which has room without them all but not without the last."""
    if p.config.vllm_v0 or not displaced(p):
        return
    head, c, groups = in_line(p)[0], p.config, p.m.groups
    if head in p.forced:
        fault("displaced", f"{p.chosen} for {head}, which was preempted by force")
    if head in dict(p.plan.ended):
        fault("displaced", f"{p.chosen} for {head}, which can never come in")
    equal(f"displaced for {head}, who rank above it", [g for g in p.chosen if p.m.rank(g) < p.m.rank(head)], [])
    need = p.blocks(p.tokens(head))
    if head in p.before.swapped[1]:
        need = p.held([head]) + (p.needs(head) if p.before.computed[head] == p.before.length[head] else 0)
    taken = [g for g in p.before.running[1] if g not in p.forced]

    def room(gone: list[int]) -> bool:
        """Would the head come in if these made way?"""
        stay = [g for g in taken if g not in gone]
        free = p.before.gpu_free + p.held(p.forced) + p.held(gone) - need
        seats = sum(groups[g].seats for g in stay) + groups[head].seats
        return free >= (c.watermark_blocks if stay else 0) and seats <= c.max_num_seqs

    if room(p.chosen[:-1]):
        fault("displaced", f"{p.chosen} for {head}, the last for nothing")
    if not room(p.chosen):
        fault("displaced", f"{p.chosen} for {head}, which has no room all the same")


def cause(p: Pass) -> str:
    """Why the victims that no event named went: the words of the report."""
    if displaced(p):
        return "for priority"
    denied = p.after.denied > p.before.denied or p.after.deny.to_dict() != p.before.deny.to_dict()
    enough = sum(p.needs(g) for g in p.decoders()) <= p.before.gpu_free and not p.config.vllm_v0
    if p.config.priority and in_line(p):
        return "for blocks or priority"
    if denied:
        return "by a denial" if enough else "for blocks or by a denial"
    return "for blocks"
