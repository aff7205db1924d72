"""Ten thousand settings: bad ones are refused in one line before jax, others take a step."""

import collections
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from ersac import api, config
from ersac.config import SettingsError
from ersac.config.presets import PRESETS
from ersac.loops import device
from ersac.runs import run_dir

FROM_PYTHON, AS_WORDS, TRACED = 9_800, 200, 8
TINY = {
    "depth": 4,
    "seeds": 1,
    "seed": 0,
    "network": "mlp",
    "hidden": (4,),
    "estimator_hidden": (4,),
    "shared_reward_heads": False,
    "rollout": 100,
    "chunk": 1,
    "members": 3,
    "batch": 8,
    "replay": 200,
    "capacity": 5,
    "updates": 2,
    "least_replay": 50,
    "target_period": 2,
    "stochastic": False,
    "mapping_seed": None,
}
# A program is compiled for each; all but the first are slow tests.
SETTLED = [
    (agent, uncertainty)
    for agent in ("vanilla", "optimism")
    for uncertainty in ("ensemble", "counts")
]
REPLAYED = [
    ("ersac-replay", "ensemble"),
    ("ersac-replay-max", "posterior"),
    ("vanilla-replay", "ensemble"),
]
OTHERS = [("boot-dqn", None), ("ersac", "counts"), ("ersac", "posterior"), *REPLAYED, *SETTLED]
AGENTS = [("ersac", "ensemble"), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS)]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """The outcome of every case, from a process without jax."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("fuzzer.py")),
        "0",
        str(FROM_PYTHON),
        str(AS_WORDS),
    ]
    done = subprocess.run(
        command, cwd=tmp_path_factory.mktemp("empty"), capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def accepted(cases):
    return [
        config.check(run_dir.settings_from_json(case["settings"]))
        for case in cases
        if case["outcome"] == "accepted"
    ]


def test_no_traceback_in_ten_thousand(cases):
    assert len(cases) == FROM_PYTHON + AS_WORDS == 10_000
    assert [case for case in cases if case["outcome"] not in ("accepted", "rejected", "help")] == []
    for source in ("from_python", "as_words"):
        counted = collections.Counter(case["outcome"] for case in cases if case["how"] == source)
        assert min(counted["accepted"], counted["rejected"]) > 0.1 * counted.total()  # both happen


def test_what_is_refused_is_what_must_be_and_says_why(cases):
    """From Python, exactly what a field does not accept is refused, with range or nearest name."""
    wrong = [
        case
        for case in cases
        if case["how"] == "from_python" and (case["outcome"] == "accepted") != case["wanted"]
    ]
    assert wrong == []
    assert [case for case in cases if case["outcome"] == "rejected" and not case["told"]] == []


def test_what_is_accepted_stays_accepted(accepted):
    for settings in accepted:
        assert config.check(settings) == settings


def fits(settings: config.Experiment) -> bool:
    """Return whether settings that are valid one by one fit together, as building checks."""
    agent, estimator = settings.agent, getattr(settings.agent, "uncertainty", None)
    if isinstance(agent, config.BootDQN):
        return True
    if agent.objective == "clipped" and agent.critic == "all-actions":
        return False
    if agent.network == "table":
        return not isinstance(estimator, config.Rnd)
    layers = (
        *agent.hidden,
        *(agent.estimator_hidden if isinstance(estimator, config.Ensemble | config.Rnd) else ()),
    )
    return not getattr(estimator, "shared_reward_heads", False) and not any(
        width % 2 for width in layers
    )


def refusal(settings: config.Experiment) -> str:
    """Return the error of building an agent; empty if there is none."""
    try:
        device.build(settings)
    except SettingsError as error:
        return str(error)
    return ""


def test_what_does_not_fit_together_is_refused_in_one_line_and_nothing_else_is(accepted):
    errors = {
        settings: refusal(config.override(settings, seeds=1, depth=4))
        for settings in accepted[:400]
    }
    assert [settings for settings, text in errors.items() if fits(settings) == bool(text)] == []
    assert not any("\n" in text for text in errors.values())
    assert 10 < sum(map(bool, errors.values())) < 200


def first_step(settings: config.Experiment) -> None:
    """Run one rollout and one update; NonFinite if a number is not finite after it."""
    program = device.prepare_device(settings)
    chunk = next(device.run_device(program))
    device.snapshot_device(program, chunk.carry)


def tiny(settings: config.Experiment) -> config.Experiment:
    """Return the settings with the same floats and tiny shapes: few programs are compiled."""
    names = {path[-1] for path, _, _ in config.leaves(settings)}
    changes = {name: value for name, value in TINY.items() if name in names}
    if "noise_variance" in names:
        variances = (
            value
            for name, value in config.floats(settings).items()
            if name.endswith(".noise_variance")
        )
        changes["noise_variance"] = next(variances, 0.0)
    if "learn_tau" in names:
        changes["learn_tau"] = True
    for name in {"critic", "normalise_advantages", "credit_early_ends", "first_visit"} & names:
        changes[name] = getattr(PRESETS[settings.agent_name], name)
    return config.override(settings, **changes)


@pytest.mark.parametrize(("agent", "uncertainty"), AGENTS)
def test_accepted_numbers_take_their_first_step(accepted, agent, uncertainty):
    cls = config.BootDQN if uncertainty is None else config.UNCERTAINTIES[uncertainty]
    matches = lambda settings: isinstance(getattr(settings, "uncertainty", settings), cls)
    candidates = [
        settings
        for settings in map(tiny, accepted)
        if settings.agent_name == agent and matches(settings.agent) and fits(settings)
    ]
    unlike = list({repr(config.floats(settings)): settings for settings in candidates}.values())
    assert len(unlike) > 2  # of presets as they are some eighty, with another estimator about five
    for settings in unlike[:40]:
        first_step(settings)


@pytest.mark.parametrize(("agent", "uncertainty"), AGENTS)
@pytest.mark.parametrize("edge", ["low", "high", "worst"])
def test_edges_take_their_first_step(agent, uncertainty, edge):
    """Every number at the same end of its range, or at the end where products are largest."""
    settings = tiny(api.make_settings(agent=agent, uncertainty=uncertainty, depth=4))
    small = {"tau0", "alpha"} if edge == "worst" else set()
    for path, hint, value in list(config.leaves(settings)):
        if isinstance(value, float):
            within = (
                next(extra for extra in hint.__metadata__ if isinstance(extra, config.Range))
                if hasattr(hint, "__metadata__")
                else None
            )
            if within is not None:
                low = np.nextafter(within.low, np.inf) if within.above else within.low
                settings = config.replace_at(
                    settings,
                    path,
                    float(low if edge == "low" or path[-1] in small else within.high),
                )
    first_step(config.check(settings))


SHAPES = [
    {"depth": 1, "rollout": 1, "hidden": (2,), "estimator_hidden": (2,), "members": 2},
    {"depth": 1, "rollout": 1, "network": "table", "hidden": (1,), "members": 2},
    {"depth": 2, "stochastic": True, "seeds": 3, "noise_variance": 0.5, "hidden": (4, 2, 2)},
    {
        "depth": 2,
        "network": "table",
        "stochastic": True,
        "seeds": 3,
        "noise_variance": 0.5,
        "hidden": (3, 1, 2),
    },
    {
        "depth": 7,
        "rollout": 129,
        "uncertainty": "counts",
        "agent": "optimism",
        "mapping_seed": 2**32 - 1,
        "seed": 2**31 - 1,
        "seeds": 2,
    },
    {"depth": 3, "learn_tau": False, "gamma": 0, "lambda": 0, "learning_rate": 0},
    {
        "depth": 1,
        "agent": "ersac-replay",
        "rollout": 1,
        "hidden": (2,),
        "members": 2,
        "capacity": 1,
        "batch": 1,
        "updates": 1,
    },
    {
        "depth": 3,
        "agent": "ersac-replay-max",
        "rollout": 7,
        "capacity": 3,
        "batch": 50,
        "updates": 3,
        "noise_variance": 0,
        "seeds": 2,
    },
    {
        "depth": 2,
        "agent": "vanilla-replay",
        "uncertainty": "counts",
        "capacity": 9,
        "critic": "all-actions",
        "stochastic": True,
    },
    {
        "depth": 1,
        "agent": "boot-dqn",
        "rollout": 1,
        "hidden": (1,),
        "members": 2,
        "batch": 1,
        "replay": 1,
        "least_replay": 1,
    },
    {
        "depth": 3,
        "agent": "boot-dqn",
        "hidden": (3, 1, 2),
        "members": 3,
        "batch": 130,
        "replay": 7,
        "noise_variance": 0.5,
        "seeds": 3,
    },
]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_small_shapes_take_their_first_step(shape):
    first_step(
        api.make_settings(**({"hidden": (4,), "rollout": 20, "chunk": 1, "episodes": 1} | shape))
    )


def test_accepted_shapes_can_be_traced(accepted, monkeypatch):
    """A whole chunk is traced with its real shapes, without compilation."""
    monkeypatch.setattr(device, "_compiled", lambda *_: dict)
    traced = set()
    for settings in accepted:
        form = config.override(
            device.static_device_settings(settings), seeds=1, depth=min(settings.env.depth, 30)
        )
        if form in traced or not fits(settings) or config.bytes_needed(form) > 2e7:
            continue
        traced.add(form)
        program = device.prepare_device(config.with_floats(form, config.floats(settings)))
        carry, env_params, key = jax.tree.map(
            lambda leaf: leaf[0], (program.carry, program.env_params, program.keys)
        )
        after, _ = jax.eval_shape(partial(device.chunk, program.settings), carry, env_params, key)
        assert jax.tree.map(np.shape, after) == jax.tree.map(np.shape, carry)
        if len(traced) == TRACED:
            break
    assert len(traced) == TRACED


BOOT = {"agent": "boot-dqn", "members": 5, "batch": 1}
LARGE_REPLAY = {"depth": 2, "batch": 1, "capacity": 5_000}  # nearly all of it is replay
TABLE = {"network": "table"}
NEEDS = [
    {"uncertainty": "ensemble"},
    {"estimator_hidden": (64, 32)},
    TABLE | {"uncertainty": "ensemble"},
    TABLE | {"uncertainty": "ensemble", "noise_variance": 0.1},
    TABLE | {"uncertainty": "posterior", "critic": "all-actions"},
    TABLE | {"uncertainty": "counts"},
    TABLE | LARGE_REPLAY | {"agent": "ersac-replay"},
    TABLE | {"agent": "ersac-replay-max", "batch": 1, "capacity": 1},
    {"uncertainty": "ensemble", "noise_variance": 0.1},  # which counts visits besides
    {"uncertainty": "posterior", "critic": "all-actions"},
    {"uncertainty": "counts"},
    LARGE_REPLAY | {"agent": "ersac-replay"},
    LARGE_REPLAY | {"agent": "ersac-replay-max", "members": 3},
    LARGE_REPLAY | {"agent": "vanilla-replay", "uncertainty": "counts", "rollout": 1},
    {"agent": "ersac-replay-max", "batch": 1, "capacity": 1},  # and nearly none
    BOOT | {"replay": 1},  # nearly all of it is tables
    BOOT | {"replay": 100_000},  # most of it is replay
    BOOT | {"replay": 100_000, "noise_variance": 0.1},
    BOOT | {"depth": 2, "hidden": (300, 200), "replay": 1},  # nearly all of it is layers
]


@pytest.mark.parametrize("changes", NEEDS, ids=str)
def test_what_a_run_needs_is_known_before_it_begins(changes, monkeypatch):
    monkeypatch.setattr(device, "_compiled", lambda *_: dict)
    settings = api.make_settings(
        **({"depth": 40, "seeds": 2, "hidden": (32, 16), "chunk": 1, "rollout": 5} | changes)
    )
    program = device.prepare_device(settings)
    state = sum(leaf.nbytes for leaf in jax.tree.leaves((program.carry, program.env_params)))
    assert config.bytes_needed(settings) / 2 == pytest.approx(state, rel=0.02)


def test_what_a_chunk_draws_to_replay_counts_too():
    """A number for each transition of each batch, all drawn at once."""
    need = lambda **changes: config.bytes_needed(
        api.make_settings(agent="boot-dqn", seeds=1, **changes)
    )
    assert need(chunk=20_001, batch=500) - need(chunk=1, batch=500) >= 20_000 * 500 * 4
    assert need(chunk=1, batch=5_000) - need(chunk=1, batch=500) > 4_500 * 10 * 100 * 4


def test_what_does_not_fit_is_refused_with_what_would(monkeypatch, tmp_path):
    pages = 8 * 2**30 // os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(
        os,
        "sysconf",
        lambda name, original=os.sysconf: pages if name == "SC_PHYS_PAGES" else original(name),
    )
    settings = api.make_settings(depth=1000, seeds=100)
    with pytest.raises(
        SettingsError,
        match=r"^--seeds 100 at --depth 1000 needs about [\d,]+ GB, and this machine has 9; "
        r"--seeds \d+ would fit$",
    ) as error:
        config.check_memory(settings)
    fit = int(str(error.value).split("--seeds ")[2].split()[0])
    config.check_memory(config.override(settings, seeds=fit))
    with pytest.raises(SettingsError):
        config.check_memory(config.override(settings, seeds=fit + 1))
    with pytest.raises(SettingsError, match="choose a smaller depth"):
        api.train(out=tmp_path / "run", show=False, depth=1000, seeds=1, hidden=(60_000, 60_000))
    with pytest.raises(
        SettingsError,
        match=r"choose a smaller depth, hidden, members, batch, rollout or chunk$",
    ):
        api.train(
            agent="boot-dqn",
            out=tmp_path / "run",
            show=False,
            depth=1000,
            seeds=1,
            replay=10_000_000,
            members=1000,
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("agent", "name", "changes"),
    [
        ("ersac-replay", "capacity", {"seeds": 4}),
        ("ersac-replay-max", "capacity", {"seeds": 3, "members": 7}),
        ("boot-dqn", "replay", {"seeds": 40}),
        (
            "boot-dqn",
            "replay",
            {"seeds": 40, "members": 5},
        ),  # of whose masks four fit into a number
    ],
)
def test_as_much_is_kept_as_would_fit(monkeypatch, tmp_path, agent, name, changes):
    """The refusal names the largest replay that fits: one more does not."""
    pages = 8 * 2**30 // os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(
        os,
        "sysconf",
        lambda name, original=os.sysconf: pages if name == "SC_PHYS_PAGES" else original(name),
    )
    settings = api.make_settings(agent=agent, **{name: 10_000_000}, **changes)
    words = r"^seeds \d+ at depth 20 needs about [\d,]+ GB, and this machine has 9; "
    words += rf"{name} \d+ would fit$"
    with pytest.raises(SettingsError, match=words) as error:
        api.train(agent=agent, out=tmp_path / "run", show=False, **{name: 10_000_000}, **changes)
    fit = int(str(error.value).split(f"{name} ")[1].split()[0])
    config.check_memory(config.override(settings, **{name: fit}))
    with pytest.raises(SettingsError, match=f"--{name} {fit} would fit"):
        config.check_memory(config.override(settings, **{name: fit + 1}))
    assert not (tmp_path / "run").exists()
