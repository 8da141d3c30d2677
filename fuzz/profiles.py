"""How long Hypothesis looks: `ci` on every commit, the same examples each time; `deep` overnight; ROUND for `kvproof fuzz`."""

from hypothesis import HealthCheck, Phase, settings

LAX = tuple(HealthCheck)
CI = settings(max_examples=90, stateful_step_count=30, deadline=None, derandomize=True, database=None, suppress_health_check=LAX)
DEEP = settings(max_examples=5000, stateful_step_count=80, deadline=None, database=None, suppress_health_check=LAX)
ROUND = settings(CI, max_examples=20, stateful_step_count=40, derandomize=False, phases=(Phase.generate,))
"""Until the first fault; `shrink` is faster than Hypothesis here, where an operation is dear."""
HUNT = settings(ROUND, max_examples=5000)


def register() -> None:
    """The names that `HYPOTHESIS_PROFILE` and `settings.load_profile` know."""
    settings.register_profile("ci", CI)
    settings.register_profile("deep", DEEP)
