"""What must hold: invariants, effects and measures, written once, evaluated on states or on z3."""
