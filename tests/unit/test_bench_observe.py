"""`python -m kvproof.bench.observe`: the shape of a row. No test here looks at a time."""

from kvproof.bench import observe


def test_a_row_has_every_cost(monkeypatch):
    for name in ("WARM", "RUNS", "KEPT"):
        monkeypatch.setattr(observe, name, 12)
    row = observe.measure(4)
    assert list(row)[:2] == ["n", "running"] and row["n"] == row["running"] == 4
    costs = ("check", "snapshot", "metrics", "to_json", "from_json")
    assert set(row) == {"n", "running", "kept_bytes", *(f"{name}_us" for name in costs)}
    assert all(value > 0 for value in row.values())
