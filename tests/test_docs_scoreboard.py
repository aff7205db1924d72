"""docs/scoreboard.md has the rows of results/scoreboard/deep-sea.json.

`python tests/test_docs_scoreboard.py --write` writes the page.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from ersac.analysis import pack, scoreboard, scores
from ersac.analysis.scores import RELIABLE_GOALS, RELIABLE_WINDOW
from ersac.config import SettingsError

ROOT = Path(__file__).parent.parent
PAGE, ROWS = ROOT / "docs" / "scoreboard.md", ROOT / "results" / "scoreboard" / "deep-sea.json"
HEAD = f"""# DeepSea scoreboard

Episodes until DeepSea is solved, for every method of which we know a number. Fewer is better; an
agent that explores at random needs about 2^depth.

- **episodes**: the median over seeds. **rule**: `reliable`, the first episode at which
  {RELIABLE_GOALS} of the last {RELIABLE_WINDOW} reached the goal; `bsuite`, the first by which
  fewer than 90 % have failed; `other`, whatever the source counts.
- **approximation**: `network` where parameters are shared by states; `table` where every state has
  parameters of its own, also beside a network; `exact` for planning with a posterior over MDPs.
  Compare like with like.
- **samples**: gradient samples for each environment step, a measure of computation.
- Numbers of this library are for held-out seeds (from 1000) and one set of settings at all depths;
  [exploration.md](exploration.md) and [deep-sea.md](deep-sea.md) say more about them.

## Score an agent

An agent is an object with `act(obs) -> action` and
`observe(obs, action, reward, next_obs, done)`. What makes it, a class or a function, is called once
per seed, with those of the arguments `depth`, `observations` (their number), `actions` (their
number) and `seed` that it takes. This one is Q-learning with optimistic initial values:

```python
# my_agent.py
import numpy as np

class Agent:
    def __init__(self, observations, actions):
        self.q = np.ones((observations + 1, actions))
        self.q[-1] = 0  # after the last step
    def act(self, obs):
        return int(self.q[obs].argmax())
    def observe(self, obs, action, reward, next_obs, done):
        self.q[obs, action] = reward + self.q[next_obs].max()
```

```
ersac score my_agent:Agent --depth 20 --seeds 5 --observations index --approximation table
```

By default an observation is a vector with a one at the agent's cell, as in bsuite, and all zeros
after the last step; with `--observations index` it is the number of the cell, and -1 after the last
step. It needs `pip install ".[gym]"`. The command prints what each seed reached and the rows for
this page. To add one, put the object that `--json` prints under `rows` into
`results/scoreboard/deep-sea.json`, run `python tests/test_docs_scoreboard.py --write`, and send a
pull request that says how to run the agent.
"""


def scoreboard_page(rows: list[dict]) -> str:
    """The page."""
    lines = []
    for depth in dict.fromkeys(row["depth"] for row in rows):
        same = [row for row in rows if row["depth"] == depth]
        lines += ["", f"## Depth {depth}", "", *scoreboard.markdown_table(same)]
    return HEAD + "\n".join(lines) + "\n"


def test_the_page_has_every_row():
    page = scoreboard_page(scoreboard.read_scoreboard(ROWS))
    assert PAGE.read_text() == page, "python tests/test_docs_scoreboard.py --write"


def test_rows_are_sorted_by_depth_rule_and_episodes(tmp_path):
    """The deepest first; at a depth by rule, then by episodes, last what is not solved."""
    never = {"episodes": None, "solved": 1}
    rows = [
        GOOD | {"depth": 50, "episodes": 900},
        GOOD | {"episodes": 100},
        GOOD | {"episodes": 300, "solved": 5, "method": "z"},
        GOOD | {"episodes": 300},
        GOOD | never,
        GOOD | {"rule": "bsuite", "episodes": 90},
        GOOD | {"depth": 9, "episodes": 30},
    ]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows[::-1]))
    assert scoreboard.read_scoreboard(path) == rows


def test_numbers_of_packs_are_those_of_their_records():
    """A row whose source is a sweep with a pack in results/ says what the pack says."""
    row = next(
        row
        for row in scoreboard.read_scoreboard(ROWS)
        if (row["method"], row["depth"]) == ("ersac-sampled (table)", 100)
    )
    packed = pack.read_pack(ROOT / "results" / "depth-100-table-paper.json")
    solved = [scores.solved_reliable(run.seeds[0].goals) for run in packed.runs]
    assert row["solved"] == sum(episode is not None for episode in solved)
    assert row["seeds"] == len(packed.runs)
    assert row["episodes"] == np.median([np.inf if x is None else x for x in solved])


GOOD = {
    "method": "mine",
    "depth": 20,
    "rule": "reliable",
    "episodes": 300,
    "solved": 3,
    "seeds": 5,
    "approximation": "network",
    "gradient_samples": None,
    "source": "here",
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rule": "mine"}, "rule must be one of reliable, bsuite, other"),
        ({"approximation": "magic"}, "approximation must be one of"),
        ({"depth": "20"}, "depth must not be '20'"),
        ({"episodes": -1}, "must be positive"),
        ({"episodes": True}, "episodes must not be True"),
        ({"solved": 6}, "solved must be at most seeds"),
        ({"seeds": None}, "solved must be at most seeds"),
        ({"episodes": None}, "must be a number where most seeds are solved"),
        ({"solved": 1}, "must be null where most seeds are not solved"),
        ({"source": " "}, "method and source must say something"),
        ({"extra": 1}, "it must have the fields method, depth"),
    ],
    ids=str,
)
def test_a_row_that_is_not_as_it_should_be_is_named(tmp_path, change, words):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([GOOD, GOOD | change]))
    with pytest.raises(SettingsError, match="row 2: .*" + re.escape(words)):
        scoreboard.read_scoreboard(path)


def test_a_file_that_is_not_a_list_of_rows_is_an_error(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text("{")
    with pytest.raises(SettingsError, match="is not JSON"):
        scoreboard.read_scoreboard(path)
    path.write_text("{}")
    with pytest.raises(SettingsError, match="is not a list of rows"):
        scoreboard.read_scoreboard(path)


def example_agent() -> str:
    """The code of the example on the page."""
    return PAGE.read_text().partition("```python\n")[2].partition("```")[0]


def test_the_example_on_the_page_solves_deep_sea(tmp_path, monkeypatch, capsys):
    from ersac.cli.main import main

    (tmp_path / "my_agent.py").write_text(example_agent())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_agent", raising=False)
    words = re.search(r"^ersac (score .*)$", PAGE.read_text(), re.MULTILINE)[1].split()
    with pytest.raises(SystemExit) as stop:
        main([*words, "--depth", "10", "--json", "--quiet"])
    assert stop.value.code == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["rule"] for row in result["rows"]] == ["reliable", "bsuite"]
    for row in result["rows"]:
        assert (row["solved"], row["seeds"], row["episodes"] < 200) == (5, 5, True)
        assert scoreboard.row_problem(row) is None
    listed = scoreboard.read_scoreboard(ROWS)
    same = [
        row for row in listed if row["method"].startswith("optimistic Q") and row["depth"] == 10
    ]
    assert [row["episodes"] for row in same] == [row["episodes"] for row in result["rows"]]


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(scoreboard_page(scoreboard.read_scoreboard(ROWS)))
