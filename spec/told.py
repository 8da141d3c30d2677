"""What an engine has been told: the tables that it knows from plans and its own notices. Tests keep it beside the scheduler."""

from kvproof.store.plan import Plan

Rows = dict[int, dict[int, list[int]]]
"""Group -> sequence -> announced blocks."""


class Told:
    """Announced tables. A plan first cuts those it trims and drops those it preempts or ends, then announces slots."""

    def __init__(self, rows: Rows | None = None) -> None:
        self.rows: Rows = {} if rows is None else rows

    def copy(self) -> "Told":
        """One that may be told different things from now on."""
        return Told({g: {q: list(row) for q, row in rows.items()} for g, rows in self.rows.items()})

    def plan(self, plan: Plan) -> None:
        """A plan was received. A slot that leaves a hole is not understood: the table stays too short."""
        for cut in plan.trimmed:
            self.trimmed(*cut)
        for g, _ in (*plan.preempted, *plan.ended):
            self.rows.pop(g, None)
        for g, q, i, b in plan.slots:
            row = self.rows.setdefault(g, {}).setdefault(q, [])
            if i == len(row):
                row.append(b)
            elif 0 <= i < len(row):
                row[i] = b

    def ended(self, g: int) -> None:
        """The engine knows that g has ended: it was aborted, or its outcome was returned."""
        self.rows.pop(g, None)

    def finished(self, g: int, q: int) -> None:
        """The engine ended sequence q of g."""
        rows = self.rows.get(g, {})
        rows.pop(q, None)
        if not rows:
            self.rows.pop(g, None)

    def trimmed(self, g: int, q: int, n: int) -> None:
        """The table of q was cut to n blocks."""
        del self.rows.get(g, {}).get(q, [])[n:]

    def forked(self, g: int, parent: int, child: int, blocks: int | None = None) -> None:
        """The engine forked: the child's table is its parent's, both cut to the `blocks` that are written (None: all are)."""
        rows = self.rows.setdefault(g, {})
        row = rows.setdefault(parent, [])
        if blocks is not None:
            del row[blocks:]
        rows[child] = list(row)
