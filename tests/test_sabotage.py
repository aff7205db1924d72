"""The faults of `make sabotage` stand for something: each still fits the source."""

import importlib.util
from pathlib import Path

PATH = Path(__file__).with_name("sabotage.py")
SPEC = importlib.util.spec_from_file_location("sabotage", PATH)
sabotage = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(sabotage)


def test_every_fault_fits_the_source_exactly_once():
    assert sabotage.misfits(sabotage.FAULTS, PATH.parent.parent / "src" / "ersac") == []


def test_there_are_enough_and_no_two_are_alike():
    assert len({fault[:3] for fault in sabotage.FAULTS}) == len(sabotage.FAULTS) >= 90
    assert len({fault.file for fault in sabotage.FAULTS}) >= 20


def test_a_stale_fault_is_named():
    stale = sabotage.Fault("game.py", "no such line", "x", "no_such_test.py")
    assert len(sabotage.misfits([stale], PATH.parent.parent / "src" / "ersac")) == 2
