"""Episodes as a video: an environment of Gymnasium draws itself while it is played in. No jax here: what cannot be is refused before."""

import inspect
import io
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ersac import config
from ersac.config import SettingsError
from ersac.packages import require_package
from ersac.runs import disk, exits

MOST_FRAMES = 2_000
FRAMES_PER_SECOND = 30  # where an environment does not say


class Video(NamedTuple):
    """A kind of video."""

    packages: tuple[str, ...]  # that it needs
    episodes: int  # that are played into one
    options: Callable[[float], dict[str, Any]]  # pictures in a second -> what imageio takes


VIDEOS = {
    # Frames are even, and stay as large as they are.
    ".mp4": Video(
        ("imageio", "imageio_ffmpeg"), 3, lambda fps: {"fps": fps, "macro_block_size": 2}
    ),
    # A picture takes ten times as long as in an mp4.
    ".gif": Video(("imageio",), 1, lambda fps: {"duration": 1000 / fps, "loop": 0}),
}


def check_video(env: config.Environment, path: Path | None) -> None:
    """SettingsError where a video is wanted and none can come of it; whether an environment draws itself is seen once it is made."""
    if path is None:
        return
    packages = config.pick("kind of video", path.suffix, VIDEOS).packages
    disk.require_new(path)
    if not env.on_host:
        raise SettingsError(
            f"{config.env_name(env)} does not draw itself: only environments of Gymnasium (gym:ID) can be filmed"
        )
    for package in packages:
        require_package("a video", package, "gym")
    require_env_factory(env)


def require_env_factory(env: config.Gym) -> None:
    """SettingsError where settings that were read have no more than the text of what makes an environment."""
    if isinstance(env.make, str):
        raise SettingsError(
            f"{env.id} was made in Python; there, use result.evaluate(), or ersac.load(FILE, make=...).evaluate()"
        )


def make_rendered_env(env: config.Gym, **options: Any) -> Any:
    """One environment of Gymnasium by itself, with options where its maker takes them."""
    from ersac.envs.gym.make import env_factory

    require_env_factory(env)
    make = (
        env_factory(env.id, **options)
        if env.make is None
        else partial(env.make, **(options if takes(env.make, options) else {}))
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # Gymnasium warns of what is refused in a line where it matters
            return make()
    except Exception as error:  # it is somebody else's
        raise SettingsError(f"{env.id} cannot be made: {config.short_repr(error)}") from error


def takes(make: Callable[..., Any], options: dict[str, Any]) -> bool:
    """Whether a maker has parameters of those names."""
    try:
        inspect.signature(make).bind(**options)
    except (TypeError, ValueError):
        return False
    return True


def film(
    env: config.Environment,
    act: Callable[[Any], Any],
    begin: Callable[[], None],
    path: Path,
    seed: int,
    tell: Callable[[str], None],
) -> None:
    """Play episodes into a video, which is written once it is whole. `begin` is called before each episode, `act` for each action."""
    check_video(env, path)
    assert env.on_host
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault(
        "SDL_AUDIODRIVER", "dummy"
    )  # pygame looks for one although nothing is heard
    import imageio.v2 as imageio

    writer: Any
    kind, one, buffer = (
        VIDEOS[path.suffix],
        make_rendered_env(env, render_mode="rgb_array"),
        io.BytesIO(),
    )
    try:
        frames = render_episodes(config.env_name(env), one, act, begin, seed, kind.episodes)
        first = next(frames)  # an environment that does not draw itself is refused here
        fps = float(one.metadata.get("render_fps") or FRAMES_PER_SECOND)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "os.fork"
            )  # ffmpeg is a program of its own from its first instruction
            with imageio.get_writer(
                buffer, format=path.suffix[1:], mode="I", **kind.options(fps)
            ) as writer:
                for number, frame in enumerate(itertools.chain([first], frames), 1):
                    writer.append_data(frame)
                    tell(f"{path}: {number:,} frames")
    except exits.EXPECTED:
        raise
    except Exception as error:  # the environment is somebody else's
        raise exits.Resumable(
            f"{config.env_name(env)} broke while it was filmed: {config.short_repr(error)}"
        ) from error
    finally:
        one.close()
    disk.write(path, buffer.getbuffer())


def render_episodes(
    name: str,
    env: Any,
    act: Callable[[Any], Any],
    begin: Callable[[], None],
    seed: int,
    episodes: int,
) -> Iterator[np.ndarray]:
    """What an environment looks like while it is played in."""
    frames = 0
    for episode in range(episodes):
        begin()
        obs, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended and frames < MOST_FRAMES:
            yield frame_of(name, env)
            frames += 1
            obs, _, terminated, truncated, _ = env.step(act(obs))
            ended = bool(terminated or truncated)
        yield frame_of(name, env)  # how it ended


def frame_of(name: str, env: Any) -> np.ndarray:
    """One picture, of even height and width, as video has it."""
    drawn = env.render() if env.render_mode == "rgb_array" else None
    if not isinstance(drawn, np.ndarray) or drawn.dtype != np.uint8 or drawn.ndim != 3:
        raise SettingsError(
            f'{name} does not draw itself: it must take render_mode="rgb_array", and render() must return such an array'
        )
    height, width = (side // 2 * 2 for side in drawn.shape[:2])
    return drawn[:height, :width, :3]
