"""The diagram of statuses in ARCHITECTURE.md, made from the table in core/status.py.

python scripts/status_diagram.py            prints it
python scripts/status_diagram.py --write    puts it into ARCHITECTURE.md
"""

import re
import sys
from pathlib import Path

from kvproof.core.status import LEGAL_MOVES, Status

PAGE = Path(__file__).resolve().parent.parent / "ARCHITECTURE.md"
BEGIN, END = "<!-- statuses: begin (scripts/status_diagram.py --write) -->", "<!-- statuses: end -->"


def name(status: Status) -> str:
    """ABSENT is where a group comes from and goes to: the dot of the diagram."""
    return "[*]" if status == Status.ABSENT else status.name


def diagram() -> str:
    """The moves as a mermaid state diagram, in the order of the table."""
    moves = [f"    {name(source)} --> {name(target)}: {label}" for source, target, label in LEGAL_MOVES]
    return "\n".join(["```mermaid", "stateDiagram-v2", *moves, "```"])


def replaced(text: str) -> str:
    """The page with the diagram of now between its marks."""
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{PAGE.name}: the marks {BEGIN} and {END} are not there")
    return pattern.sub(lambda _: f"{BEGIN}\n{diagram()}\n{END}", text)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    elif not sys.argv[1:]:
        print(diagram())
    else:
        sys.exit(f"usage: {sys.argv[0]} [--write]")
