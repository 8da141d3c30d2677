"""A backend on host memory that executes plans with real contents, and a model whose tokens betray any misplaced block.

    plan -> FakeBackend.execute: tables from what the plan announces (ledger), then swap_out, swap_in, copy (memory)
         -> FakeModel.run:       writes this step's tokens, reads every history back through the block tables

It is the embedded default and the judge of the scheduler: any misuse of a block raises `BackendError` with its kind.
"""

from kvproof.backend_fake.backend import FakeBackend
from kvproof.backend_fake.errors import BackendError, Misuse
from kvproof.backend_fake.model import FakeModel

__all__ = ["BackendError", "FakeBackend", "FakeModel", "Misuse"]
