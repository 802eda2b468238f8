"""What a training came to: acceptance by depth on text that was held out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi.errors import import_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class HeadsReport(list[dict[str, Any]]):
    """One row a temperature and depth: positions, and the share of them at which a chain of that depth was right.

    Attributes
    ----------
    path : Path
        The folder with the heads.
    receipt : dict
        What they are made of: steps, seed, digests of text, model and file.
    losses : list of (step, loss, held-out loss)
        Divergence from the target's distribution in nats.
    """

    def __init__(self, rows: list[dict[str, Any]], path: Path, receipt: dict[str, Any], losses: list[tuple[int, float, float]]) -> None:
        super().__init__(rows)
        self.path, self.receipt, self.losses = path, receipt, losses

    def acceptance(self, temperature: float) -> list[float]:
        """Rates of chains of 1, 2, .. tokens."""
        return [row["acceptance"] for row in self if row["temperature"] == temperature]

    def __repr__(self) -> str:
        lines = [f"{self.path}: {self.receipt['steps']} steps, {self.receipt['visits']} tokens visited"]
        depths = max(row["depth"] for row in self)
        lines.append(f"{'acceptance':<12}" + "".join(f"{f'{depth} token' + 's' * (depth > 1):>10}" for depth in range(1, depths + 1)))
        lines += [f"T = {t:<8g}" + "".join(f"{rate:>10.3f}" for rate in self.acceptance(t)) for t in (0.0, 1.0)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{row['depth']}</th>" for row in self if row["temperature"] == 0)
        body = "".join(
            f"<tr><td>T = {t:g}</td>" + "".join(f"<td>{rate:.3f}</td>" for rate in self.acceptance(t)) + "</tr>" for t in (0.0, 1.0)
        )
        return f"<table><thead><tr><th>tokens in a row</th>{head}</tr></thead><tbody>{body}</tbody></table>"

    def plot(self) -> Figure:
        """Acceptance by depth, and the losses (needs matplotlib)."""
        pyplot = import_extra("matplotlib.pyplot", "plot")
        figure: Figure
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3))
        for temperature in (0.0, 1.0):
            rates = self.acceptance(temperature)
            left.plot(range(1, len(rates) + 1), rates, marker="o", label=f"T = {temperature:g}")
        left.set_xlabel("tokens in a row")
        left.set_ylabel("accepted")
        left.legend()
        steps, losses, held = zip(*self.losses, strict=True)
        right.plot(steps, losses, label="text")
        right.plot(steps, held, label="held out, two tokens")
        right.set_xlabel("step")
        right.set_ylabel("divergence, nats")
        right.legend()
        return figure
