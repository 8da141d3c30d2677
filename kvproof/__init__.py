"""kvproof: a preemptive scheduler and KV-cache block manager for LLM inference, proved on the functions that run."""

from pathlib import Path as _Path

__version__ = "0.1.0"

_root = _Path(__file__).resolve().parent.parent
if (_root / "core" / "schedule.py").is_file():  # a source checkout: the other subpackages lie beside this folder
    __path__.append(str(_root))

from kvproof.books import Snapshot  # noqa: E402
from kvproof.checking import InvariantViolation  # noqa: E402
from kvproof.core.config import ArtificialPreemption, Config, ConfigError  # noqa: E402
from kvproof.core.errors import Rejected  # noqa: E402
from kvproof.core.status import Status  # noqa: E402
from kvproof.metrics import Metrics  # noqa: E402
from kvproof.order import Order, PolicyError  # noqa: E402
from kvproof.policies.calibrated import Calibrated  # noqa: E402
from kvproof.policies.costs import Costs  # noqa: E402
from kvproof.results import Result, Taken, take_back  # noqa: E402
from kvproof.scheduler import Outcome, Scheduler  # noqa: E402
from kvproof.serial import LoadError, plan_from_json, plan_to_json, state_from_json, state_to_json  # noqa: E402
from kvproof.store.plan import Plan, Recompute  # noqa: E402
from kvproof.store.policies import Policy  # noqa: E402
from kvproof.store.state import State  # noqa: E402

__all__ = [
    "ArtificialPreemption",
    "Calibrated",
    "Config",
    "ConfigError",
    "Costs",
    "InvariantViolation",
    "LoadError",
    "Metrics",
    "Order",
    "Outcome",
    "Plan",
    "Policy",
    "PolicyError",
    "Recompute",
    "Rejected",
    "Result",
    "Scheduler",
    "Snapshot",
    "State",
    "Status",
    "Taken",
    "__version__",
    "plan_from_json",
    "plan_to_json",
    "state_from_json",
    "state_to_json",
    "take_back",
]
