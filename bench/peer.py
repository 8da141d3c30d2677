"""The peer: a scheduler and block manager that edit their objects in place and check nothing, measured in the same run as ours.

It reproduces, in our own words, how nano-vllm (MIT, github.com/GeeeekExplorer/nano-vllm) schedules: one object per sequence with
its list of tokens, a deque of waiting and one of running sequences; prefills first; a decode step walks every running sequence,
asks `can_append`, preempts the tail of the running queue by recompute until it can, and calls `may_append`; `postprocess` gives
each sequence its token and frees those that are done. Full blocks are hashed with what stands before them, and a prompt shares
blocks that another has filled with the same tokens, as there; the hash is Python's own, where the original copies the tokens into
an array for xxhash, so these rows are a little kinder to it. No swapping, no groups, no limits but the token budget.
"""

from collections import deque

WAITING, RUNNING, FINISHED = range(3)
NO_HASH = -1


class Sequence:
    """A request: its tokens, its block table, when it ends."""

    def __init__(self, seq_id: int, tokens: list[int], max_tokens: int, block_size: int) -> None:
        self.seq_id, self.tokens, self.block_size = seq_id, tokens, block_size
        self.prompt, self.max_tokens = len(tokens), max_tokens
        self.status = WAITING
        self.table: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_blocks(self) -> int:
        """Blocks that its tokens fill, rounded up."""
        return (len(self.tokens) + self.block_size - 1) // self.block_size

    @property
    def done(self) -> bool:
        """Has it all its tokens?"""
        return len(self.tokens) - self.prompt >= self.max_tokens

    def block(self, i: int) -> list[int]:
        """The tokens of its i-th block."""
        return self.tokens[i * self.block_size : (i + 1) * self.block_size]

    def append_token(self, token: int) -> None:
        """One token more."""
        self.tokens.append(token)


class Block:
    """One block; somebody uses it while `ref_count` is not 0. A full one has the hash of its tokens and all before them."""

    def __init__(self, block_id: int) -> None:
        self.block_id, self.ref_count, self.hash = block_id, 0, NO_HASH
        self.tokens: list[int] = []


class BlockManager:
    """Free and used blocks, who may have more, and which block has which hash."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = [Block(i) for i in range(num_blocks)]
        self.free = deque(range(num_blocks))
        self.used: set[int] = set()
        self.by_hash: dict[int, int] = {}

    def take(self, seq: Sequence) -> Block:
        """The next free block goes to the end of the table of seq."""
        block = self.blocks[self.free.popleft()]
        block.ref_count, block.hash, block.tokens = 1, NO_HASH, []
        self.used.add(block.block_id)
        seq.table.append(block.block_id)
        return block

    def fill(self, block: Block, prefix: int, tokens: list[int]) -> int:
        """The block is full: it is found by its hash from now on."""
        block.hash, block.tokens = hash((prefix, *tokens)), tokens
        self.by_hash[block.hash] = block.block_id
        return block.hash

    def can_allocate(self, seq: Sequence) -> bool:
        """Do all tokens of seq fit?"""
        return len(self.free) >= seq.num_blocks

    def allocate(self, seq: Sequence) -> None:
        """Blocks for all tokens of seq; a full one that somebody uses with the same tokens up to there is shared."""
        prefix = NO_HASH
        for i in range(seq.num_blocks):
            tokens = seq.block(i)
            if len(tokens) < self.block_size:
                self.take(seq)
                continue
            here = hash((prefix, *tokens))
            found = self.by_hash.get(here, -1)
            if found in self.used and self.blocks[found].hash == here and self.blocks[found].tokens == tokens:
                self.blocks[found].ref_count += 1
                seq.table.append(found)
                prefix = here
            else:
                prefix = self.fill(self.take(seq), prefix, tokens)

    def deallocate(self, seq: Sequence) -> None:
        """Everything that seq holds is given back."""
        for block_id in reversed(seq.table):
            block = self.blocks[block_id]
            block.ref_count -= 1
            if block.ref_count == 0:
                self.used.remove(block_id)
                self.free.append(block_id)
        seq.table.clear()

    def can_append(self, seq: Sequence) -> bool:
        """Is there a block if the last token of seq begins one?"""
        return len(self.free) >= (len(seq) % self.block_size == 1)

    def may_append(self, seq: Sequence) -> None:
        """A block more if the last token of seq begins one; the last block is hashed if its last token fills it."""
        over = len(seq) % self.block_size
        if over == 1:
            self.take(seq)
        elif over == 0:
            prefix = self.blocks[seq.table[-2]].hash if len(seq.table) > 1 else NO_HASH
            self.fill(self.blocks[seq.table[-1]], prefix, seq.block(seq.num_blocks - 1))


class PeerScheduler:
    """schedule() -> (sequences, is_prefill); postprocess(sequences, tokens)."""

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.manager = BlockManager(num_blocks, block_size)
        self.waiting: deque[Sequence] = deque()
        self.running: deque[Sequence] = deque()
        self.preemptions = 0

    def add(self, seq: Sequence) -> None:
        """seq waits."""
        self.waiting.append(seq)

    def preempt(self, seq: Sequence) -> None:
        """seq gives its blocks back and waits in front."""
        seq.status = WAITING
        self.manager.deallocate(seq)
        self.waiting.appendleft(seq)
        self.preemptions += 1

    def schedule(self) -> tuple[list[Sequence], bool]:
        """Prefills if anybody can be admitted, else one token for everybody."""
        scheduled: list[Sequence] = []
        tokens = 0
        while self.waiting and len(scheduled) < self.max_num_seqs:
            seq = self.waiting[0]
            if tokens + len(seq) > self.max_num_batched_tokens or not self.manager.can_allocate(seq):
                break
            self.manager.allocate(seq)
            tokens += len(seq)
            seq.status = RUNNING
            self.running.append(self.waiting.popleft())
            scheduled.append(seq)
        if scheduled:
            return scheduled, True
        while self.running and len(scheduled) < self.max_num_seqs:
            seq = self.running.popleft()
            while not self.manager.can_append(seq):
                if not self.running:
                    self.preempt(seq)
                    break
                self.preempt(self.running.pop())
            else:
                self.manager.may_append(seq)
                scheduled.append(seq)
        self.running.extendleft(reversed(scheduled))
        return scheduled, False

    def postprocess(self, seqs: list[Sequence], tokens: list[int]) -> list[Sequence]:
        """Each gets its token; who is done is freed and returned."""
        ended = []
        for seq, token in zip(seqs, tokens, strict=True):
            seq.append_token(token)
            if seq.done:
                seq.status = FINISHED
                self.manager.deallocate(seq)
                self.running.remove(seq)
                ended.append(seq)
        return ended
