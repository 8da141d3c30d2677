"""What the core asks of a draft: sizes in blocks and tokens, ranks, who may be preempted. Nothing here changes it."""

from kvproof.store.contents import Contents

RANKS = 2**62
"""More than any id: a group ranks by priority, then by id."""


class Measures(Contents):
    """Readings of a draft."""

    __slots__ = ()

    def capacity(self, g: int) -> int:
        """Slots in the tables of g, which have one size: block_size * blocks."""
        table, members = self.table, self.members
        if members and g in members:
            return self.config.block_size * table.height(g)
        return self.config.block_size * table[g][1] if g in table else 0

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens, rounded up."""
        return -(-tokens // self.config.block_size)

    def slots_for(self, tokens: int) -> int:
        """Slots of the blocks that hold `tokens` tokens."""
        return self.config.block_size * self.blocks_for(tokens)

    def full_blocks(self, tokens: int) -> int:
        """Blocks that `tokens` tokens fill."""
        return tokens // self.config.block_size

    def per_sequence(self, g: int, blocks: int) -> int:
        """`blocks` for each live sequence of g."""
        return self.members.count(g) * blocks

    def work(self, g: int, tokens: int) -> int:
        """Tokens that a prefill of g computes: `tokens` of each live sequence, what they have in common once."""
        if g not in self.members:
            return tokens
        return sum(tokens - min(common, tokens) for _, common in self.members.kin(g))

    def ceiling(self, g: int) -> int:
        """Blocks of the tables of all sequences that g may have, when each has a token less than its limit: the last one needs no
        slot."""
        return self.seats[g] * self.blocks_for(self.limit[g] - 1)

    def rows(self, g: int, tokens: int) -> int:
        """Blocks of the tables of g for so many tokens of each sequence: those that common tokens fill once, but for the last."""
        n = self.blocks_for(tokens)
        if g not in self.members:
            return n
        return sum(n - min(common, tokens - 1) // self.config.block_size for _, common in self.members.kin(g))

    # Priorities.

    ranks = RANKS

    def rank(self, g: int) -> int:
        """The place of g in policy order: by priority, then by arrival."""
        return self.priority.get(g, 0) * RANKS + g

    def behind(self, g: int) -> tuple[int, int]:
        """(blocks, seats) of the running groups that rank below g and may be preempted."""
        rank, blocks, seats = self.rank(g), 0, 0
        for h in reversed(self.running.ids):
            if self.rank(h) < rank:
                break
            if self.may_go(h):
                blocks += self.table.distinct(h)
                seats += self.seats.get(h, 1)
        return blocks, seats

    def may_go(self, g: int) -> bool:
        """May g be preempted? Not if it was so often already as it may be; what events force is not counted."""
        most = self.config.max_preemptions_per_request
        return most is None or self.preemptions[g] < most

    def last_below(self, g: int) -> int:
        """The last of the running groups with larger keys than g that may be preempted; g if there is none."""
        h: int
        key, mine = self.key, self.key[g]
        for h in reversed(self.running.ids):
            if key[h] <= mine:
                break
            if self.may_go(h):
                return h
        return g

    def tokens_before(self, g: int) -> int:
        """Tokens that the running groups which rank above g ask of a step: those of their decodes, and of their prompts to go."""
        rank, tokens = self.rank(g), 0
        for h in self.running.ids:
            if self.rank(h) > rank:
                break
            tokens += self.work(h, self.length[h]) - self.computed[h] if self.prefilling.has(h) else self.members.count(h)
        return tokens
