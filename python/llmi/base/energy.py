"""Energy that the processor packages have used, where the kernel lets a program read it: RAPL, as Linux shows it in /sys/class/powercap."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/sys/class/powercap")


class EnergyMeter:
    """Joules of all packages since it was made. They are the machine's, not this process's.

    joules() is None where no package can be read: a virtual machine has none, and elsewhere only root may read them.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        # intel-rapl:0 is a package, whatever its maker; intel-rapl:0:0 is a part of it.
        self._zones = sorted(zone for zone in root.glob("intel-rapl:*") if zone.name.count(":") == 1)
        self._last = self._read()
        self._total_uj = 0

    def _read(self) -> list[int] | None:
        try:
            return [int((zone / "energy_uj").read_text()) for zone in self._zones] or None
        except (OSError, ValueError):
            return None

    def joules(self) -> float | None:
        """Since it was made. The counters run over after an hour or less at full load: ask more often."""
        last, now = self._last, self._read()
        if last is None or now is None:
            return None
        for zone, before, after in zip(self._zones, last, now, strict=True):
            ran_over = after < before
            self._total_uj += after - before + (int((zone / "max_energy_range_uj").read_text()) if ran_over else 0)
        self._last = now
        return self._total_uj / 1e6


def cost_per_million(price_per_hour: float, tokens_per_s: float) -> float:
    """What a million tokens cost, in the price's currency, on a machine that costs price_per_hour."""
    return price_per_hour / 3600 / tokens_per_s * 1e6
