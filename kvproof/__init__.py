"""kvproof: a preemptive scheduler and KV-cache block manager for LLM inference, proved on the functions that run."""

from pathlib import Path as _Path

__version__ = "0.1.0"

_root = _Path(__file__).resolve().parent.parent
if (_root / "core" / "schedule.py").is_file():  # a source checkout: the other subpackages lie beside this folder
    __path__.append(str(_root))

from kvproof.books import Snapshot  # noqa: E402
from kvproof.checking import InvariantViolation  # noqa: E402
from kvproof.core.config import Config, ConfigError  # noqa: E402
from kvproof.core.errors import Rejected  # noqa: E402
from kvproof.core.status import Status  # noqa: E402
from kvproof.metrics import Metrics  # noqa: E402
from kvproof.scheduler import Outcome, Scheduler  # noqa: E402
from kvproof.store.plan import Plan  # noqa: E402
from kvproof.store.state import State  # noqa: E402

__all__ = [
    "Config",
    "ConfigError",
    "InvariantViolation",
    "Metrics",
    "Outcome",
    "Plan",
    "Rejected",
    "Scheduler",
    "Snapshot",
    "State",
    "Status",
    "__version__",
]
