"""The command line run as a subprocess: output, files and exit codes."""

import functools
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ersac import __version__, api, config
from ersac.cli import commands, doctor, summaries
from ersac.cli.completion import OPTIONS, completion_script
from ersac.cli.main import COMMANDS, main
from ersac.cli.parsing import split_positional
from ersac.config.presets import PRESETS
from ersac.loops import devices
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
    (("train", "gymnx:CartPole-v1"), "unknown environment 'gymnx'; did you mean gymnax?"),
    (("train", "CartPole"), "an id of Gymnasium such as CartPole-v1"),
    (("train", "--depth", "10"), "which environment? ersac train ENV"),
    (("train", "deep-sea", "--verbose", "1"), "--verbose of agent ersac; --help-all lists them"),
    (
        ("train", "CartPole-v1", "--env-kwargs", "[8]"),
        "--env-kwargs must be a JSON object such as '{\"size\": 8}' or none, not '[8]'",
    ),
    (("completion", "fish"), "which shell?"),
    (("sweep", "missing.toml"), "missing.toml"),
    (("trian", "deep-sea"), "did you mean train?"),
    (("theory", "deep-see"), "did you mean deep-sea?"),
    (("theory", "deep-sea", "--agent", "klearning"), "did you mean k-learning?"),
    (
        ("theory", "deep-sea", "--depth", "deep"),
        "--depth must be a whole number between 1 and 1000, not 'deep'",
    ),
    (("theory", "--draws", "1"), "--draws must be a whole number at least 2, not 1"),
    (("theory", "--out", "taken"), "already exists"),
    (("theory", "gmes"), "did you mean games?"),
    (("theory", "games", "--rounds", "1"), "--rounds must be a whole number at least 20, not 1"),
    (("theory", "games", "--out", "taken"), "already exists"),
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
        ("theory", "games", "--help"),
        ("--version",),
    ],
)
def test_help_needs_no_jax(tmp_path, argv):
    done = ersac(*argv, cwd=tmp_path, code=WITHOUT_JAX)
    assert done.returncode == 0, done.stderr
    assert "ersac" in done.stdout


def test_help_all_explains_every_setting(tmp_path):
    text = ersac("train", "deep-sea", "--help-all", cwd=tmp_path, code=WITHOUT_JAX).stdout
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


SCREEN_LINES, SCREEN_COLUMNS = 36, 100  # what a help page may take
OWN_PAGES = ("bench", "completion")  # without settings of config/, so without --help-all
PAGES = [
    (),
    ("train",),
    ("train", "deep-sea"),
    ("train", "CartPole-v1", "--agent", "boot-dqn"),
    *((name,) for name in COMMANDS if name != "train"),
    ("theory", "deep-sea"),
    ("theory", "games"),
]


@pytest.mark.parametrize("argv", PAGES, ids=lambda argv: " ".join(argv) or "ersac")
def test_the_help_of_a_command_fits_a_screen_and_has_an_example(argv, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main([*argv, "--help"])
    assert stop.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert all(len(line) <= SCREEN_COLUMNS for line in lines)
    assert len([line for line in lines if line.startswith("  --")]) <= 10
    assert len([line for line in lines if line.startswith("example: ")]) == 1
    assert lines[-1].startswith(f"example: ersac {' '.join(argv[:1])}".rstrip())
    if argv and argv[0] not in OWN_PAGES:
        assert "--help-all" in lines[-2]


def test_the_help_names_every_command_and_agent(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert {name for name in COMMANDS if f"\n  ersac {name}" not in text} == set()
    assert {name for name in PRESETS if f" {name}" not in text} == set()


@pytest.mark.parametrize(
    "argv",
    [
        ("--depth", "10", "deep-sea"),
        ("--hidden", "64", "64", "deep-sea", "--depth", "10"),
        ("--no-stop-when-solved", "deep-sea", "--depth=10"),
        ("--resume", "deep-sea", "--depth", "10"),
        ("--depth=10", "--seed", "3", "deep-sea"),
        ("--prior_scale", "0.1", "deep-sea", "--depth", "10"),
        ("--seed", "-1", "deep-sea"),
    ],
    ids=" ".join,
)
def test_options_may_come_before_the_environment(argv):
    env, rest = split_positional(list(argv), commands.TrainOptions)
    assert env == "deep-sea"
    assert rest == [word for word in argv if word != "deep-sea"]


def test_options_may_come_before_the_subject_of_theory(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["theory", "--depth", "9", "deep-sea", "--help"])
    assert stop.value.code == 0
    assert "usage: ersac theory deep-sea" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [("-V",), ("--version",)])
def test_the_version_is_printed(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        main(list(argv))
    assert (stop.value.code, capsys.readouterr().out) == (0, f"ersac {__version__}\n")


SCRIPT = functools.cache(completion_script)


def complete(words: str, tmp_path: Path) -> list[str]:
    """What bash offers for the last word of a command."""
    script = tmp_path / "completion.bash"
    script.write_text(SCRIPT("bash"))
    code = """
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
        $(complete -p ersac | sed 's/.*-F \\([^ ]*\\).*/\\1/') ersac
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    command = ["bash", "-c", code, "bash", str(script), *words.split(" ")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_agents(tmp_path):
    assert {"train", "eval", "doctor"} <= set(complete("ersac ", tmp_path))
    assert "--depth" in complete("ersac train deep-sea --dep", tmp_path)
    assert "--workers" in complete("ersac train gym:CartPole-v1 --work", tmp_path)
    assert "boot-dqn" in complete("ersac train deep-sea --agent bo", tmp_path)
    assert "--video" in complete("ersac eval runs/first --vi", tmp_path)
    assert set(complete("ersac train --network ", tmp_path)) == {"mlp", "table"}
    assert "--lambda" in complete("ersac train --lamb", tmp_path)


ZSH_READY, ZSH_SECONDS = "ready%", 20.0


def type_in_zsh(folder: Path, words: str) -> str:
    """The command line of an interactive zsh after `words` and the tab key."""
    (folder / "_ersac").write_text(SCRIPT("zsh"))
    setup = f"PS1=''; fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D; "
    setup += "zstyle ':completion:*' list-prompt ''; bindkey '^I' complete-word\n"
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ |= {"TERM": "dumb", "COLUMNS": "200", "HOME": str(folder)}
        os.execvp("zsh", ["zsh", "-f", "-i"])
    try:
        os.write(terminal, setup.encode())
        os.write(terminal, b"echo rea''dy%\n")
        read_until(terminal, ZSH_READY)
        os.write(terminal, words.encode() + b"\t")
        time.sleep(1.0)
        os.write(terminal, b"#end\n")  # complete or not, the line is now over
        return read_until(terminal, "#end")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def read_until(terminal: int, text: str) -> str:
    """What a terminal prints until `text`."""
    shown, start = "", time.monotonic()
    while text not in shown and time.monotonic() < start + ZSH_SECONDS:
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
# jax warns of a fork; this one starts zsh at once.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("ersac doc", "ersac doctor"),
        ("ersac train --dept", "ersac train --depth"),
        ("ersac eval --vid", "ersac eval --video"),
        ("ersac train deep-sea --agent boot-dqn-l", "--agent boot-dqn-large"),
        ("ersac train --lamb", "ersac train --lambda "),
        ("ersac train --network t", "--network table"),
    ],
)
def test_zsh_completes_commands_options_and_agents(words, completed, tmp_path):
    assert completed in type_in_zsh(tmp_path, words)


def test_zsh_has_a_completion_script_and_every_command_is_completed():
    assert SCRIPT("zsh").startswith("#compdef ersac")
    assert set(COMMANDS) - {"bench", "completion"} <= {name.split()[0] for name in OPTIONS}


def test_the_doctor_reports_on_one_screen_and_trains(tmp_path):
    done = ersac("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    assert len(lines) <= 24
    report = json.loads(last)
    assert "jax 0." in report["packages"]
    assert report["cores"].startswith(f"{len(os.sched_getaffinity(0))} of ")
    assert report["devices"].endswith("cpu")
    assert "solved after" in report["run"]
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_counts_the_cores_that_a_container_may_use(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(devices, "core_limit", lambda: 2)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert dict(doctor.describe_machine())["cores"].startswith("2 of 8")


def test_steps_beyond_the_budget_are_explained():
    small = {"envs": 2, "rollout": 10, "hidden": (8,), "show": False}
    result = api.train("gymnax:CartPole-v1", steps=100, chunk=8, **small)
    assert result.steps == 160
    line = "160 steps (in whole chunks of 160 a seed, which --chunk can shorten)"
    assert summaries.describe_steps(result) == line
    within = config.override(result.settings, steps=160)
    assert summaries.describe_steps(replace(result, settings=within)) == "160 steps"


def test_the_doctor_says_what_is_wrong_with_a_platform(tmp_path):
    code = "import os; os.environ['JAX_PLATFORMS'] = 'cuda'; from ersac.cli import main; main()"
    done = ersac("doctor", cwd=tmp_path, code=code)
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
    assert any(line.startswith("run ") and "failed" in line for line in done.stdout.splitlines())


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
    assert "settings.json was written by an older ersac" in done.stderr


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
    assert {snapshot.visits.shape for snapshot in snapshots} == {(20, 20)}
    assert 2 <= len(snapshots) <= 33
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
