"""Follows the maps of one step from the tables before to the tables after: what every block of everybody became."""


def check_moves(record, previous, wishes=False) -> None:
    """I7: maps move what the tables say, tables follow from maps, and whatever is new in a table was announced.

    wishes: lookahead slots that nobody has written may have been given back and others announced in their place.
    """
    out, into = dict(record["swap_out_map"]), dict(record["swap_in_map"])
    copies = record["copy_map"]
    for field, pairs in (("swap_out", record["swap_out_map"]), ("swap_in", record["swap_in_map"]), ("copy", copies)):
        assert len(pairs) == record[field]
        assert len({target for _, target in pairs}) == len(pairs), f"{field}: a target twice"
    assert len(out) == record["swap_out"] and len(into) == record["swap_in"], "a source twice"
    assert not (out and into), "swaps both ways"
    before = previous["tables"] if previous else {}
    ran, swapped = (previous["queues"][queue] if previous else () for queue in ("running", "swapped"))
    left, back = [], []
    for name, rows in record["tables"].items():
        old, runs = before.get(name, []), name in record["queues"]["running"]
        moved = {}  # what became of each block that it had
        if name in ran and not runs:
            moved = out
            left += {b for row in rows for b in row}
        elif name in swapped and runs:
            moved = into
            back += {b for row in old for b in row}
        elif name not in before:
            old = []
        if len(old) == 1:
            old = old * len(rows)  # forked since
        for row, had in zip(rows, old, strict=False) if len(rows) == len(old) else ():
            assert wishes or len(row) >= len(had), f"{name} lost blocks"
            announced = {b for blocks in record["new_blocks"].get(name, []) for b in blocks} if wishes else ()
            for b, a in zip(row, had, strict=False):
                a = moved.get(a) if moved else a
                assert a == b or [a, b] in copies or b in announced, f"{name}: block {a} became {b}"
        if runs:
            new = {b for row in rows for b in row} - ({b for row in old for b in row} if not moved else set())
            told = record["new_blocks"].get(name, [])
            assert new <= {b for blocks in told for b in blocks}, f"{name}: {new} is not announced"
            assert (name in ran and old) or len(rows) > 1 or told == rows, f"{name} came (back) with other blocks than announced"
    assert sorted(left) == sorted(out.values()) and sorted(back) == sorted(into)
    rows = [row for name in record["queues"]["running"] for row in record["tables"][name]]
    for _, target in copies:
        assert sum(target in row for row in rows) == 1, f"the copy {target} has not one owner"
