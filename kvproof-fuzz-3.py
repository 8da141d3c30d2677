"""Rejected in no request has the id 1000000"""

from kvproof.fuzz.setup import setup
from kvproof.fuzz.world import World

world = World(
    setup(
        num_gpu_blocks=10,
        num_cpu_blocks=0,
        block_size=1,
        max_num_seqs=3,
        max_num_batched_tokens=4,
        max_model_len=40,
        mode="recompute",
    )
)
world.do("commit", (), (), (), False, ((2, 7),))
