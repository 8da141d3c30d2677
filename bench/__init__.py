"""Cost of a scheduling pass, in calibrated units."""
