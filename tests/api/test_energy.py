"""Joules from a folder as Linux has it, and what a token costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmi.base.energy import EnergyMeter, cost_per_million


def test_packages_add_up_and_counters_run_over(tmp_path: Path) -> None:
    def set_joules(**zones: float) -> None:
        for name, joules in zones.items():
            zone = tmp_path / f"intel-rapl:{name.replace('_', ':')[1:]}"
            zone.mkdir(exist_ok=True)
            (zone / "energy_uj").write_text(f"{int(joules * 1e6)}\n")
            (zone / "max_energy_range_uj").write_text("100000000\n")

    set_joules(z0=90, z1=5, z0_0=40)
    meter = EnergyMeter(tmp_path)
    assert meter.joules() == 0
    set_joules(z0=97, z1=6, z0_0=70)
    assert meter.joules() == 8, "parts of a package are in it already"
    set_joules(z0=2, z1=6)
    assert meter.joules() == 13, "100 J after 0 the first counter begins anew"
    assert meter.joules() == 13


def test_where_nothing_can_be_read(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path / "none").joules() is None
    (tmp_path / "intel-rapl:0").mkdir()
    assert EnergyMeter(tmp_path).joules() is None


def test_cost() -> None:
    assert cost_per_million(3.6, 1000.0) == pytest.approx(1.0)
