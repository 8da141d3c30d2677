"""How long Hypothesis looks: `ci` on every commit, the same examples each time; `deep` overnight; ROUND for `kvproof fuzz`.

All go in rounds of nine examples, each round with a seed of its own. From the tenth example on Hypothesis would run five near
copies of each: many short rounds see more than a long one.
"""

from hypothesis import HealthCheck, Phase, settings

LAX = tuple(HealthCheck)
CI = settings(max_examples=9, stateful_step_count=30, deadline=None, derandomize=True, database=None, suppress_health_check=LAX)
DEEP = settings(CI, stateful_step_count=80, derandomize=False)
ROUND = settings(CI, stateful_step_count=40, derandomize=False, phases=(Phase.generate,))
"""Until the first fault; `shrink` is faster than Hypothesis here, where an operation is dear."""
ROUNDS = {"ci": 10, "deep": 1000}
"""Profile -> so many."""


def register() -> None:
    """The names that `HYPOTHESIS_PROFILE` and `settings.load_profile` know."""
    settings.register_profile("ci", CI)
    settings.register_profile("deep", DEEP)
