"""`python -m kvproof.bench.orders`: the shape of its rows. No test here looks at a time."""

from kvproof.bench import orders
from kvproof.order import BUILT_IN


def test_every_order_has_a_row(monkeypatch):
    for name in ("WARM", "PASSES", "RUNS"):
        monkeypatch.setattr(orders, name, 12)
    rows = orders.measure([3])
    cases = ["no order", *BUILT_IN, "rerank", "auto victim", "auto victim", "observation"]
    assert [row["case"] for row in rows] == cases
    assert all(set(row) == {"case", "n", "median_us", "mean_us"} and row["median_us"] > 0 for row in rows)
