"""The command line run as a subprocess: output, files and exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ersac.runs import run_dir


def ersac(
    *argv: str, cwd: Path, code: str = "from ersac.cli import main; main()"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *argv],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


# An import of jax in this process is an error, and so a failure.
WITHOUT_JAX = "import sys; sys.modules['jax'] = None; from ersac.cli import main; main()"
BAD = [
    (
        ("train", "deep-sea", "--depth", "0"),
        "--depth must be a whole number between 1 and 1000, not 0",
    ),
    (
        ("train", "deep-sea", "--depth", "-3"),
        "--depth must be a whole number between 1 and 1000, not -3",
    ),
    (
        ("train", "deep-sea", "--depth", "deep"),
        "--depth must be a whole number between 1 and 1000, not 'deep'",
    ),
    (("train", "deep-sea", "--depth=deep"), "not 'deep'"),
    (("train", "deep-sea", "--agent", "ersca"), "unknown agent 'ersca'; did you mean ersac?"),
    (
        ("train", "deep-sea", "--lambda", "1.5"),
        "--lambda must be a number between 0 and 1, not 1.5",
    ),
    (
        ("train", "deep-sea", "--seeds", "-2"),
        "--seeds must be a whole number between 1 and 10000, not -2",
    ),
    (("train", "deep-sea", "--hidden", "64", "x"), "--hidden must be one or more of"),
    (("train", "deep-sea", "--dept", "5"), "did you mean --depth?"),
    (
        ("train", "deep-sea", "--agent", "vanilla", "--tau0", "1"),
        "unknown option --tau0 of agent vanilla",
    ),
    (
        ("train", "deep-sea", "--agent", "boot-dqn", "--tau0", "1"),
        "unknown option --tau0 of agent boot-dqn",
    ),
    (("train", "deep-sea", "--uncertainty", "count"), "did you mean counts?"),
    (
        ("train", "deep-sea", "--agent", "boot-dqn", "--uncertainty", "counts"),
        "--uncertainty of agent boot-dqn; known: --members,",
    ),
    (
        ("train", "deep-sea", "--agent", "boot-dqn", "--replay", "0"),
        "--replay must be a whole number between 1 and 10000000, not 0",
    ),
    (
        ("train", "deep-sea", "--agent", "boot-dqm"),
        "unknown agent 'boot-dqm'; did you mean boot-dqn?",
    ),
    (
        ("train", "deep-sea", "--agent", "boot-dqn", "--repaly", "5"),
        "unknown option --repaly of agent boot-dqn; did you mean --replay?",
    ),
    (("train", "deep-sea", "--replay", "5"), "unknown option --replay of agent ersac"),
    (("train", "deep-sea", "surplus"), "surplus"),
    (("train", "deepsea"), "did you mean deep-sea?"),
    (("trian", "deep-sea"), "did you mean train?"),
    (("theory", "deep-see"), "did you mean deep-sea?"),
    (("theory", "deep-sea", "--agent", "klearning"), "did you mean k-learning?"),
    (
        ("theory", "deep-sea", "--depth", "deep"),
        "--depth must be a whole number between 1 and 1000, not 'deep'",
    ),
    (("theory", "--draws", "1"), "--draws must be a whole number at least 2, not 1"),
    (("theory", "--out", "taken"), "already exists"),
    (("train", "deep-sea", "--out", "taken"), "already exists"),
    (("train", "deep-sea", "--out", "taken/run.txt"), "already exists"),
]


@pytest.mark.parametrize(
    ("argv", "words"), BAD, ids=lambda x: " ".join(x) if isinstance(x, tuple) else ""
)
def test_bad_input_is_one_line_and_exit_code_2_before_jax(tmp_path, argv, words):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "run.txt").write_text("precious")
    done = ersac(*argv, cwd=tmp_path, code=WITHOUT_JAX)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("ersac: ")
    assert words in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["taken", "run.txt"]
    assert (tmp_path / "taken" / "run.txt").read_text() == "precious"


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("--help",),
        ("train",),
        ("train", "deep-sea", "--help"),
        ("theory", "--help"),
        ("theory", "deep-sea", "--help"),
        ("--version",),
    ],
)
def test_help_needs_no_jax(tmp_path, argv):
    done = ersac(*argv, cwd=tmp_path, code=WITHOUT_JAX)
    assert done.returncode == 0, done.stderr
    assert "ersac" in done.stdout


def test_help_explains_every_setting(tmp_path):
    text = ersac("train", "deep-sea", "--help", cwd=tmp_path, code=WITHOUT_JAX).stdout
    for option in (
        "--depth",
        "--gamma",
        "--lambda",
        "--tau0",
        "--prior-scale",
        "--rollout",
        "--no-stop-when-solved",
        "--json",
        "--out",
    ):
        assert option in text


def test_python_m_ersac_is_the_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "ersac", "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("ersac ")


def test_a_run_of_another_format_is_refused_in_one_line(tmp_path):
    settings = {"kind": "Experiment", "agent": "ersac", "learner": {}, "hash": "0123456789ab"}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "settings.json").write_text(json.dumps(settings))
    done = ersac("resume", "run", cwd=tmp_path, code=WITHOUT_JAX)
    assert (done.returncode, done.stderr.count("\n")) == (74, 1)
    assert "settings.json was written by another version of ersac" in done.stderr


def test_depth_20_is_solved_by_four_of_four_and_writes_a_run_directory(tmp_path):
    done = ersac(
        "train",
        "deep-sea",
        "--depth",
        "20",
        "--seeds",
        "4",
        "--seed",
        "1000",
        "--episodes",
        "5000",
        "--json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    summary = json.loads(last)
    assert lines[0] == "compiling"
    assert lines[1].startswith("episode ")
    assert {
        "agent",
        "env",
        "depth",
        "seeds",
        "episodes",
        "steps",
        "steps_per_second",
        "compile_seconds",
        "wall_seconds",
    } <= set(summary)
    assert (summary["agent"], summary["env"], summary["depth"], summary["seeds"]) == (
        "ersac",
        "deep-sea",
        20,
        4,
    )
    assert all(solved is not None and solved <= 5000 for solved in summary["solved_reliable"])
    assert summary["solved_reliable"] == [row["solved_reliable"] for row in summary["per_seed"]]
    assert summary["episodes"] < 5000  # it stopped when all were solved

    directory = tmp_path / summary["out"]
    seeds, metrics, snapshots = run_dir.read_results(directory)
    assert [stats.seed for stats in seeds] == [1000, 1001, 1002, 1003]
    assert int(np.argmax(seeds[0].goals)) + 1 == summary["first_goal"][0]
    np.testing.assert_array_equal(seeds[0].goals, seeds[0].returns > 0.5)
    assert metrics.values["tau"].shape == (4, len(metrics.step))
    assert [snapshot.visits.shape for snapshot in snapshots] == [(20, 20)] * 2
    assert (
        snapshots[-1].visits[19, 19] > snapshots[0].visits[19, 19]
    )  # the frontier reached the corner
    assert (directory / "picture.png").read_bytes().startswith(b"\x89PNG")
    settings = json.loads((directory / "settings.json").read_text())
    assert settings["agent"]["risk"]["kind"] == "Seeking"
    assert json.loads((directory / "fingerprint.json").read_text())["packages"]["jax"]

    again = ersac("train", "deep-sea", "--out", summary["out"], cwd=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")


def test_theory_deep_sea_prints_one_json_object_like_train(tmp_path):
    done = ersac(
        "theory",
        "deep-sea",
        "--depth",
        "9",
        "--agent",
        "k-learning",
        "--seeds",
        "3",
        "--seed",
        "1000",
        "--json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["agent"], summary["env"], summary["depth"], summary["seeds"]) == (
        "k-learning",
        "deep-sea",
        9,
        3,
    )
    assert [row["seed"] for row in summary["per_seed"]] == [1000, 1001, 1002]
    for row in summary["per_seed"]:
        assert row["first_goal"] <= row["solved_bsuite"] <= 100
        assert row["solved_reliable"] is not None
