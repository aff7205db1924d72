"""Gymnasium's spaces as plain data and back, so that a file can say what a policy sees and does without its environment. No jax here."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

LEFT_OUT = spaces.Text(1)  # stands for what no agent sees: text, graphs, sequences


def space_json(space: Space) -> dict[str, Any]:
    """A space as plain data, as far as an agent sees it."""
    match space:
        case spaces.Discrete():
            return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {
                "kind": "MultiDiscrete",
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
            }
        case spaces.MultiBinary():
            return {"kind": "MultiBinary", "shape": list(space.shape)}
        case spaces.Box():
            bounds = {"low": _bound_json(space.low), "high": _bound_json(space.high)}
            return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
        case spaces.Dict():  # pairs, because their order is that of the numbers
            return {
                "kind": "Dict",
                "entries": [[key, space_json(each)] for key, each in space.spaces.items()],
            }
        case spaces.Tuple():
            return {"kind": "Tuple", "entries": [space_json(each) for each in space.spaces]}
    return {"kind": "LeftOut"}


def space_from_json(told: Mapping[str, Any]) -> Space:
    """The space that plain data describe."""
    match told["kind"]:
        case "Discrete":
            return spaces.Discrete(told["n"], start=told["start"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(np.array(told["nvec"]), start=np.array(told["start"]))
        case "MultiBinary":
            return spaces.MultiBinary(told["shape"])
        case "Box":
            low, high = (
                np.broadcast_to(np.array(told[name], told["dtype"]), told["shape"])
                for name in ("low", "high")
            )
            return spaces.Box(low, high, dtype=np.dtype(told["dtype"]).type)
        case "Dict":
            return spaces.Dict([(key, space_from_json(each)) for key, each in told["entries"]])
        case "Tuple":
            return spaces.Tuple([space_from_json(each) for each in told["entries"]])
    return LEFT_OUT


def alone(space: Space, observation: Any) -> Any:
    """One observation as a vector of one environment has it; what its space does not have is left out."""
    match space:
        case spaces.Dict():
            return {key: alone(each, observation[key]) for key, each in space.spaces.items()}
        case spaces.Tuple():
            return tuple(
                alone(each, part) for each, part in zip(space.spaces, observation, strict=True)
            )
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            array = np.asarray(observation)
            if array.shape != space.shape:
                raise ValueError(f"shape {array.shape} instead of {space.shape}")
            return array[None].astype(space.dtype)
    return observation


def _bound_json(bound: np.ndarray) -> Any:
    """Bounds as plain numbers, as a single one where all are alike: an image has thousands."""
    return bound.flat[0].item() if bound.size and (bound == bound.flat[0]).all() else bound.tolist()
