"""Settings to environments."""

from ersac import config
from ersac.envs.base import Env
from ersac.envs.deep_sea import deep_sea


def make_env(settings: config.DeepSea) -> Env:
    """The environment that some settings describe."""
    return deep_sea(settings.depth, settings.stochastic, settings.mapping_seed)
