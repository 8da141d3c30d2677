"""How much memory of the host may still be taken."""

from pathlib import Path


def free_host_memory(root: Path) -> int:
    """Free bytes by /proc/meminfo and the control groups under this root, of which any may be missing."""

    def number(path: str) -> int | None:
        try:
            return int((root / path).read_text())
        except (OSError, ValueError):
            return None  # "max" too

    free = [1 << 62]
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    free += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    for most, used in (
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit = number(most)
        if limit is not None:
            free.append(max(0, limit - (number(used) or 0)))
    return min(free)
