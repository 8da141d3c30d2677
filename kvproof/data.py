"""Where traces and models lie: they are too large for the repository and are found through one environment variable."""

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def data_dir() -> Path:
    """KVPROOF_DATA, or `shared` beside the repository. It need not exist."""
    return Path(os.environ.get("KVPROOF_DATA") or REPOSITORY.parent / "shared")
