"""The 57 games of the Atari benchmark: their names, in any spelling, and their reference scores.

No emulator is imported here, so that a name is checked before it is.
"""

import difflib
import functools
import re
from pathlib import Path
from typing import NamedTuple

from ersac.config.fields import SettingsError, short_repr

SCORES = Path(__file__).parents[1] / "envs" / "atari_scores.csv"
# Gymnasium's ids: ALE/Pong-v5, PongNoFrameskip-v4, PongDeterministic-v4, Pong-v4.
ATARI_ID = re.compile(r"(ALE/)?(\w+?)(NoFrameskip|Deterministic)?(-v\d+)?")


class ReferenceScores(NamedTuple):
    """The mean scores of a game between which scores are normalised."""

    human: float
    random: float


@functools.cache
def reference_scores() -> dict[str, ReferenceScores]:
    """The human and random scores of the 57 games, by name in snake_case."""
    lines = [line for line in SCORES.read_text().splitlines() if not line.startswith("#")]
    rows = (line.split(",") for line in lines[1:])
    return {game: ReferenceScores(float(human), float(random)) for game, human, random in rows}


def parse_game(name: str) -> str:
    """The snake_case name of a game in any spelling; SettingsError with the nearest names."""
    found = ATARI_ID.fullmatch(name.strip())
    games = {_letters(game): game for game in reference_scores()}
    word = _letters(found[2] if found else name)
    if word in games:
        return games[word]
    contain = [game for letters, game in games.items() if len(word) > 2 and word in letters]
    close = [games[near] for near in difflib.get_close_matches(word, games, n=3, cutoff=0.5)]
    nearest = list(dict.fromkeys([*contain, *close]))[:3]
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else "such as atari:freeway"
    raise SettingsError(f"unknown Atari game {short_repr(name)}, not one of the 57; {hint}")


def is_atari_id(env_id: str) -> bool:
    """Whether a Gymnasium id is one of the emulator's: by its form, or because it names a game."""
    found = ATARI_ID.fullmatch(env_id)
    if found is None:
        return False
    games = {_letters(game) for game in reference_scores()}
    return bool(found[1] or found[3]) or (found[4] is not None and _letters(found[2]) in games)


def _letters(name: str) -> str:
    """A name without what its spellings differ by."""
    return re.sub(r"[\W_]", "", name).lower()
