"""`python -m kvproof`."""

from kvproof.cli import main

main()
