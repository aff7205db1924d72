"""The animation of a run on DeepSea: visits, sigma and policy after every few rollouts, as a GIF.

A run stores its maps at a few moments only. Repeating it is exact, so its training is run again
with shorter chunks, and the maps are taken after each of them.
"""

import io
import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm, PowerNorm
from matplotlib.figure import Figure

from ersac import config
from ersac.config import Experiment
from ersac.envs.deep_sea import action_map
from ersac.loops import device
from ersac.runs import disk
from ersac.runs.progress import OnChunk, Progress
from ersac.types import Array, Key, Learner

DRAWS = 100  # sampled actions in every cell
FRAME_MS, LAST_FRAME_MS = 90, 2500
SIZE, DPI = (9.6, 4.4), 100  # inches
COLORS = 128  # of the palette, which all frames share
BACKGROUND, INK, FAINT = "#0d1117", "#e6edf3", "#8b949e"
MAX_ARROWS_DEPTH = 32  # arrows of a deeper map are too small
MIN_OCCUPANCY = 1e-3  # shown of where the policy leads
LIGHT_OCCUPANCY = 0.02  # from which its colour is light


class MapFrame(NamedTuple):
    """The maps of a run's first seed after some episodes, each [depth, depth]."""

    episode: int
    goal_share: float  # of the last 100 episodes; nan before the first
    visits: np.ndarray
    sigma: np.ndarray
    right: np.ndarray  # the share of right moves among sampled actions


def shorten_chunks(settings: Experiment, episodes: int, frames: int) -> Experiment:
    """The settings of a run of so many episodes, with a chunk for each frame.

    The length of a chunk does not change the results.
    """
    env = config.deep_sea_env(settings)
    rollouts = episodes * env.depth / (settings.agent.rollout * env.envs)
    return config.override(settings, chunk=max(1, math.ceil(rollouts / frames)))


def frame_collector(settings: Experiment, frames: list[MapFrame]) -> OnChunk:
    """A function for `on_chunk` that adds the maps after every chunk to `frames`."""
    env = config.deep_sea_env(settings)
    mapping = settings.run.seed if env.mapping_seed is None else env.mapping_seed
    right_action = action_map(env.depth, mapping)

    def collect(progress: Progress) -> None:
        carry = device.first_seed(progress.carry)
        shape = right_action.shape
        visits = np.array(carry.visits).reshape(shape)
        sigma = device.learner_maps(settings, carry.learner)[0].reshape(shape)
        right = right_shares(settings, carry.learner, right_action)
        share = progress.metrics["goal_share"]
        frames.append(MapFrame(progress.episodes, share, visits, sigma, right))

    return collect


def right_shares(settings: Experiment, learner: Learner, right_action: np.ndarray) -> np.ndarray:
    """The share of right moves among actions that the agent samples in each cell."""
    static = device.static_device_settings(settings)
    drawn = np.asarray(_draw_actions(static, config.floats(settings), learner))
    return (drawn == right_action.reshape(-1, 1)).mean(axis=1).reshape(right_action.shape)


@partial(jax.jit, static_argnums=0)
def _draw_actions(static: Experiment, floats: dict[str, Array], learner: Learner) -> Array:
    env, agent = device.build(config.with_floats(static, floats))

    def draw(obs: Array, key: Key) -> Array:
        key_episode, key_action = jax.random.split(key)
        state = agent.policy.init_episode(learner, key_episode)
        noise = jax.tree.map(lambda leaf: leaf[0], agent.policy.action_noise(key_action, 1))
        return agent.policy.to_env(agent.policy.act(learner, state, obs, noise)[0])

    keys = jax.random.split(jax.random.key(0), DRAWS)  # the same in every frame: no flicker
    draws = lambda obs: jax.vmap(partial(draw, obs))(keys)
    return jax.lax.map(draws, jnp.arange(env.n_states), batch_size=256)


def pass_probabilities(right: np.ndarray) -> np.ndarray:
    """The probability that an episode of the policy passes each cell, without failing moves."""
    depth = len(right)
    passed = np.zeros((depth, depth))
    passed[0, 0] = 1.0
    for row in range(depth - 1):
        to_right, to_left = passed[row] * right[row], passed[row] * (1 - right[row])
        passed[row + 1, 1:] += to_right[:-1]
        passed[row + 1, :-1] += to_left[1:]
        passed[row + 1, 0] += to_left[0]
        passed[row + 1, -1] += to_right[-1]
    return passed


def write_animation(frames: list[MapFrame], title: str, path: Path) -> int:
    """Draw the frames, write them as a GIF, which must not exist yet, and return its size."""
    disk.require_new(path)
    data = encode_gif(draw_frames(frames, title))
    disk.write(path, data)
    return len(data)


def draw_frames(frames: list[MapFrame], title: str) -> list[np.ndarray]:
    """Every frame as an image [height, width, 3]."""
    figure = Figure(figsize=SIZE, dpi=DPI, facecolor=BACKGROUND)
    canvas = FigureCanvasAgg(figure)
    scales = shared_scales(frames)
    images = []
    for number in range(len(frames)):
        figure.clear()
        draw_frame(figure, frames, number, title, scales)
        canvas.draw()
        images.append(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    return images


def shared_scales(frames: list[MapFrame]) -> dict[str, Any]:
    """The colour scales, which are the same in every frame."""
    most = max(int(frame.visits.max()) for frame in frames)
    sigma = max(float(frame.sigma[np.tril_indices(len(frame.sigma))].max()) for frame in frames)
    return {
        "visits": LogNorm(1, max(2, most)),
        "sigma": PowerNorm(0.5, 0, sigma or 1.0),
        "policy": LogNorm(MIN_OCCUPANCY, 1),
    }


def draw_frame(
    figure: Figure, frames: list[MapFrame], number: int, title: str, scales: dict[str, Any]
) -> None:
    """The three maps of a frame above the share of goals so far."""
    frame, depth = frames[number], len(frames[number].visits)
    unreachable = np.triu(np.ones((depth, depth), bool), 1)
    sigma, passed = np.ma.masked_where(unreachable, frame.sigma), pass_probabilities(frame.right)
    panels = (
        ("visits of a cell", "visits", np.ma.masked_less(frame.visits, 1), "viridis"),
        (
            "sigma, the uncertainty",
            "sigma",
            sigma,
            "inferno",
        ),
        ("where the policy leads", "policy", np.ma.masked_less(passed, MIN_OCCUPANCY), "GnBu_r"),
    )
    for column, (name, scale, values, cmap) in enumerate(panels):
        axes = figure.add_axes((0.02 + 0.327 * column, 0.165, 0.306, 0.6677))
        draw_sea(axes, depth)
        axes.imshow(values, norm=scales[scale], cmap=cmap, interpolation="nearest")
        axes.set_title(name, color=INK, fontsize=11, loc="left", pad=6)
        if scale == "policy" and depth <= MAX_ARROWS_DEPTH:
            draw_arrows(axes, frame.right, passed)
    figure.text(0.02, 0.955, title, color=INK, fontsize=12, weight="bold", va="center")
    figure.text(
        0.98, 0.955, f"episode {frame.episode:,}", color=INK, fontsize=12, ha="right", va="center"
    )
    draw_curve(figure, frames, number)


def draw_sea(axes: Any, depth: int) -> None:
    """The cells that can be reached, faintly, and the treasure."""
    reachable = np.ma.masked_equal(np.tril(np.ones((depth, depth))), 0)
    axes.imshow(reachable * 0.12, vmin=0, vmax=1, cmap="gray", interpolation="nearest")
    axes.plot(depth - 0.5, depth - 0.5, "*", color="#f2cc60", ms=13, clip_on=False, zorder=5)
    axes.set(xlim=(-0.5, depth - 0.5), ylim=(depth - 0.5, -0.5), xticks=[], yticks=[])
    axes.set_facecolor(BACKGROUND)
    axes.spines[:].set_visible(False)


def draw_arrows(axes: Any, right: np.ndarray, passed: np.ndarray) -> None:
    """The mean move in each cell that can be reached; light on dark cells, else dark."""
    rows, columns = np.tril_indices(len(right))
    across = 2 * right[rows, columns] - 1
    axes.quiver(
        *(columns, rows, across, np.ones_like(across)),
        color=np.where(passed[rows, columns] > LIGHT_OCCUPANCY, BACKGROUND, FAINT),
        angles="xy",
        pivot="mid",
        scale=1.9 * len(right),
        width=0.006,
        headwidth=4,
    )


def draw_curve(figure: Figure, frames: list[MapFrame], number: int) -> None:
    """The share of the last 100 episodes that reached the goal, up to a frame."""
    axes = figure.add_axes((0.02, 0.055, 0.96, 0.075))
    shown = frames[: number + 1]
    episodes = [0, *(frame.episode for frame in shown)]
    shares = np.nan_to_num([0.0, *(frame.goal_share for frame in shown)])
    axes.fill_between(episodes, shares, color="#f2cc60", alpha=0.35, lw=0)
    axes.plot(episodes, shares, color="#f2cc60", lw=1.5)
    axes.plot(episodes[-1], shares[-1], "o", color="#f2cc60", ms=4, clip_on=False)
    axes.set(xlim=(0, frames[-1].episode), ylim=(0, 1.05), xticks=[], yticks=[])
    axes.set_facecolor(BACKGROUND)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#30363d")
    text = f"goal in {shares[-1]:.0%} of the last 100 episodes"
    figure.text(0.02, 0.024, text, color=FAINT, fontsize=9, va="center")


def encode_gif(images: list[np.ndarray]) -> memoryview:
    """The images as an endless GIF; all share one palette, and the last one stays longest."""
    from PIL import Image

    montage = np.concatenate([images[i] for i in np.linspace(0, len(images) - 1, 6).astype(int)])
    palette = Image.fromarray(montage).quantize(COLORS)
    quantized = [
        Image.fromarray(image).quantize(palette=palette, dither=Image.Dither.NONE)
        for image in images
    ]
    buffer = io.BytesIO()
    quantized[0].save(
        buffer,
        format="GIF",
        save_all=True,
        append_images=quantized[1:],
        duration=[FRAME_MS] * (len(images) - 1) + [LAST_FRAME_MS],
        loop=0,
        optimize=True,
    )
    return buffer.getbuffer()
