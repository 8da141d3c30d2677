"""Both profiles on the recorded workloads: steps, preemptions and ends, file by file, and the sums over the files that count.

A file counts if vllm_v0 ends every request that kvproof ends. Run it as `.venv/bin/python scripts/compare_profiles.py [FOLDER]`.
"""

import sys
from pathlib import Path
from typing import Any

from kvproof.formats import load_scenario
from kvproof.replay import Replay

HERE = Path(__file__).parent.parent / "tests" / "conformance" / "golden"
FINISHED = ("finished",)


def run(path: Path, profile: str) -> dict[str, Any]:
    """Steps, preemptions, who finished, and whether tokens were right; states are not checked here (the tests do)."""
    *_, last = Replay(load_scenario(path, {"profile": profile}), check=lambda state: []).lines()
    requests = last.get("requests", {})
    return {
        "steps": last.get("steps", last.get("step", 0)),
        "preemptions": sum(sum(request["preemptions"].values()) for request in requests.values()),
        "finished": {name for name, request in requests.items() if request["outcome"] in FINISHED},
        "right": last.get("tokens_match", False),
    }


def main() -> int:
    """Exit status 1 if kvproof needs more steps or preemptions in the sum, or a token is wrong."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    print(f"{'file':<16}{'steps v0':>10}{'kvproof':>9}{'preempt. v0':>13}{'kvproof':>9}{'finished v0':>13}{'kvproof':>9}  counts")
    total = [0, 0, 0, 0]
    good = True
    for path in sorted(folder.glob("*.json")):
        v0, ours = run(path, "vllm_v0"), run(path, "kvproof")
        good &= ours["right"]
        counts = ours["finished"] <= v0["finished"]
        numbers = [v0["steps"], ours["steps"], v0["preemptions"], ours["preemptions"]]
        total = [a + b * counts for a, b in zip(total, numbers, strict=True)]
        ends = f"{len(v0['finished']):>13}{len(ours['finished']):>9}"
        print(f"{path.stem:<16}{numbers[0]:>10}{numbers[1]:>9}{numbers[2]:>13}{numbers[3]:>9}{ends}  {'yes' if counts else 'no'}")
    print(f"{'sum':<16}{total[0]:>10}{total[1]:>9}{total[2]:>13}{total[3]:>9}")
    return 0 if good and total[1] <= total[0] and total[3] <= total[2] else 1


if __name__ == "__main__":
    sys.exit(main())
