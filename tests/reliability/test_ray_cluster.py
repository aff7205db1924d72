"""The Atari sweep on a cluster: the records of the local engine, also after a loss."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from ersac.config import SettingsError
from ersac.runs import run_dir, seal
from ersac.sweeps import engines

HERE = Path(__file__).parent


def run(engine: str, home: Path) -> str:
    code = [sys.executable, str(HERE / "atari_cluster.py"), engine, str(home)]
    done = subprocess.run(code, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    return done.stdout


def digests(home: Path) -> dict[str, str]:
    """The digest of the results of every run that has ended."""
    return {
        path.parent.name: seal.read_sealed(path)["facts_sha256"]
        for path in home.glob(f"*/{run_dir.SUMMARY}")
    }


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_two_node_cluster_has_the_records_of_this_machine_and_survives_losses(tmp_path):
    pytest.importorskip("ray")
    pytest.importorskip("ale_py")
    run("local", tmp_path / "local")
    expected = digests(tmp_path / "local")
    assert len(expected) == 4
    said = run("cluster", tmp_path / "cluster")  # Ray tells of both losses, too
    assert "\nlost a machine\n" in said.partition("killed the worker of ")[2]
    assert digests(tmp_path / "cluster") == expected


class SavedUnit(NamedTuple):
    """A unit of which only its progress matters."""

    name: str
    steps: int

    def steps_saved(self) -> int:
        return self.steps


def test_a_unit_is_given_up_only_where_it_makes_no_progress():
    losses = engines.Losses()
    assert all(losses.may_retry(SavedUnit("moves", number)) for number in range(50))
    stuck = [losses.may_retry(SavedUnit("stuck", 0)) for _ in range(engines.RETRIES + 2)]
    assert stuck == [True] * engines.RETRIES + [False] * 2
    assert losses.may_retry(SavedUnit("stuck", 1))


def test_a_cluster_that_does_not_exist_is_an_error_of_one_line(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(SettingsError, match=r"^there is no Ray cluster at --address auto: start"):
        engines._start_ray("auto", 1)
    with pytest.raises(SettingsError, match="need --engine ray"):
        engines.find_engine("local", engines.RayOptions(cores=2))
