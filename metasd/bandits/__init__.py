"""Bandits and rewards: one file each policy, registered here by name."""

from collections.abc import Sequence

from metasd.bandits.base import Bandit, Setting
from metasd.bandits.costs import CostTable
from metasd.bandits.rewards import REWARDS, Reward
from metasd.core import UsageError, refuse
from metasd.registry import Registry, parse_spec

BANDITS = Registry(
    "bandit",
    {
        "ucb": "metasd.bandits.ucb:UCB",
        "fixed": "metasd.bandits.fixed:Fixed",
        "random": "metasd.bandits.random:Random",
        "round-robin": "metasd.bandits.round_robin:RoundRobin",
    },
)
AUTO_BANDIT = "ucb"
AUTO_REWARD = "rb"

__all__ = [
    "AUTO_BANDIT",
    "AUTO_REWARD",
    "BANDITS",
    "REWARDS",
    "Bandit",
    "CostTable",
    "Reward",
    "Setting",
    "make_bandit",
]


def make_bandit(
    spec: str | Bandit,
    arms: Sequence[str],
    *,
    reward: str = "auto",
    objective: str = "speed",
    num_draft_tokens: int | None = None,
    costs: CostTable | None = None,
) -> Bandit:
    """Build a policy over these arms.

    Args:
        spec: "auto", a registered name, or `name:key=value,...`; a ready Bandit is returned as it is.
        arms: the pool's arms.
        reward: "auto" or a registered reward.
        objective: "speed" (tokens per second) or "tokens" (tokens per round, the paper's).
        num_draft_tokens: a fixed block length; None: chosen with the arm.
        costs: seconds of each arm and block length; None: nominal ones.

    Raises:
        UsageError: an unknown bandit, reward or parameter; the known ones are listed.
    """
    if not isinstance(spec, str):
        if not isinstance(spec, Bandit):
            raise refuse("bandit", "a name or a Bandit", type(spec).__name__)
        return spec
    name, options = parse_spec(AUTO_BANDIT + spec[4:] if spec == "auto" or spec.startswith("auto:") else spec)
    if not arms:
        raise refuse("arms", "at least one arm", "none")
    reward = AUTO_REWARD if reward == "auto" else reward
    if reward not in REWARDS:
        raise refuse("reward", f"one of auto, {', '.join(REWARDS)}", repr(reward))
    setting = Setting(tuple(arms), REWARDS[reward], objective, num_draft_tokens, costs or CostTable())
    policy: Bandit = BANDITS.load(name).from_options(setting, options)
    return policy


def check_names(bandit: str | Bandit, reward: str) -> None:
    """Fail on an unknown bandit or reward before anything expensive is loaded.

    Raises:
        UsageError: the known names are listed.
    """
    if isinstance(bandit, str):
        name = parse_spec(bandit)[0]
        if name != "auto" and name not in BANDITS:
            raise UsageError(f"bandit: expected one of auto, {', '.join(BANDITS.names())}, got {name!r}")
    if reward != "auto" and reward not in REWARDS:
        raise refuse("reward", f"one of auto, {', '.join(REWARDS)}", repr(reward))
