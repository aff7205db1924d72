"""Videos of episodes, rendered by a Gymnasium environment. No jax here."""

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

MAX_FRAMES = 2_000
DEFAULT_FPS = 30  # if the environment's metadata has none


class VideoFormat(NamedTuple):
    """A video format."""

    packages: tuple[str, ...]  # required
    episodes: int  # recorded in one video
    options: Callable[[float], dict[str, Any]]  # frames per second -> options of imageio


VIDEO_FORMATS = {
    ".mp4": VideoFormat(
        packages=("imageio", "imageio_ffmpeg"),
        episodes=3,
        options=lambda fps: {"fps": fps, "macro_block_size": 2},  # even sizes are not rescaled
    ),
    ".gif": VideoFormat(
        packages=("imageio",),
        episodes=1,  # a frame takes ten times as long as in an mp4
        options=lambda fps: {"duration": 1000 / fps, "loop": 0},
    ),
}


def check_video(env: config.Environment, path: Path | None) -> None:
    """SettingsError where a video of this environment cannot be written; no path is no video.

    Whether an environment can be rendered is known only after it was created.
    """
    if path is None:
        return
    packages = config.pick("video format", path.suffix, VIDEO_FORMATS).packages
    disk.require_new(path)
    if not env.on_host:
        raise SettingsError(
            f"{config.env_name(env)} cannot be rendered: "
            "a video needs a Gymnasium environment, gym:ID"
        )
    for package in packages:
        require_package("a video", package, "gym")
    require_env_factory(env)


def require_env_factory(env: config.Gym | config.Atari) -> None:
    """SettingsError where the environment's factory is a Python function, stored as its text."""
    if config.is_text_only(env.make):
        raise SettingsError(
            f"{env.id} is created by a Python function, which is not stored: call "
            "result.evaluate() in Python, or ersac.load(FILE, make=...).evaluate()"
        )


def make_single_env(env: config.Gym | config.Atari, **options: Any) -> Any:
    """One Gymnasium environment; `options` are passed on if its factory accepts them."""
    if isinstance(env, config.Atari):
        from ersac.envs.atari_gym import AtariGame

        return AtariGame(env, **options)
    from ersac.envs.gym.make import factory_of

    require_env_factory(env)
    make = factory_of(env)
    if env.make is None or accepts(make, options):  # gymnasium.make takes a render mode
        make = partial(make, **options)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters in Gymnasium's warnings is checked here
            return make()
    except Exception as error:  # an environment may raise anything
        raise SettingsError(f"{env.id} cannot be created: {config.short_repr(error)}") from error


def accepts(make: Callable[..., Any], options: dict[str, Any]) -> bool:
    """Whether a factory has parameters of those names."""
    try:
        inspect.signature(make).bind(**options)
    except (TypeError, ValueError):
        return False
    return True


def film(
    env: config.Environment,
    act: Callable[..., Any],
    on_reset: Callable[[], None],
    path: Path,
    seed: int,
    on_progress: Callable[[str], None],
) -> None:
    """Record episodes as a video, which is written to `path` once it is complete.

    on_reset: called before each episode.
    """
    check_video(env, path)
    path = path.absolute()  # an environment may change the directory
    assert env.on_host
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # else pygame looks for a sound card
    import imageio.v2 as imageio

    name, video_format = config.env_name(env), VIDEO_FORMATS[path.suffix]
    instance, buffer = make_single_env(env, render_mode="rgb_array"), io.BytesIO()
    writer: Any
    try:
        frames = render_episodes(name, instance, act, on_reset, seed, video_format.episodes)
        first = next(frames)  # raises where the environment cannot be rendered
        fps = float(instance.metadata.get("render_fps") or DEFAULT_FPS)
        options = {"format": path.suffix[1:], "mode": "I", **video_format.options(fps)}
        with warnings.catch_warnings():
            # The warning is about forking with threads, but the child executes ffmpeg at once.
            warnings.filterwarnings("ignore", "os.fork")
            with imageio.get_writer(buffer, **options) as writer:
                for number, frame in enumerate(itertools.chain([first], frames), 1):
                    writer.append_data(frame)
                    on_progress(f"{path}: {number:,} frames")
    except exits.EXPECTED:
        raise
    except Exception as error:  # an environment may raise anything
        raise exits.Resumable(
            f"{name} failed while its video was recorded: {config.short_repr(error)}"
        ) from error
    finally:
        instance.close()
    disk.write(path, buffer.getbuffer())


def render_episodes(
    name: str,
    env: Any,
    act: Callable[..., Any],
    on_reset: Callable[[], None],
    seed: int,
    episodes: int,
) -> Iterator[np.ndarray]:
    """The rendered frames of episodes, at most MAX_FRAMES and one last frame for each episode."""
    frames = 0
    for episode in range(episodes):
        on_reset()
        obs, info = env.reset(seed=seed + episode)
        ended = False
        while not ended and frames < MAX_FRAMES:
            yield render_frame(name, env)
            frames += 1
            action = act(obs, action_mask=info.get("action_mask"))
            obs, _, terminated, truncated, info = env.step(action)
            ended = bool(terminated or truncated)
        yield render_frame(name, env)  # the last state


def render_frame(name: str, env: Any) -> np.ndarray:
    """One frame [height, width, 3]; both sides are cut to even numbers, which video codecs need."""
    frame = env.render() if env.render_mode == "rgb_array" else None
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3:
        raise SettingsError(
            f'{name} cannot be rendered: it must accept render_mode="rgb_array", and render() '
            "must return a uint8 array [height, width, 3]"
        )
    height, width = (side // 2 * 2 for side in frame.shape[:2])
    return frame[:height, :width, :3]
