"""Bandits and rewards: one file each policy, registered here by name."""

from collections.abc import Sequence

from metasd.bandits.base import Bandit, Context, Policy, Setting
from metasd.bandits.costs import CostTable
from metasd.bandits.rewards import REWARDS, Reward, make_reward
from metasd.bandits.saved import load_state, save_state
from metasd.core import UsageError, refuse
from metasd.registry import Registry, parse_spec

BANDITS = Registry(
    "bandit",
    {
        "auto": "metasd.bandits.auto:Auto",
        "ucb": "metasd.bandits.ucb:UCB",
        "discounted-ucb": "metasd.bandits.discounted_ucb:DiscountedUCB",
        "sliding-ucb": "metasd.bandits.sliding_ucb:SlidingUCB",
        "kl-ucb": "metasd.bandits.kl_ucb:KLUCB",
        "ucbspec": "metasd.bandits.ucbspec:UCBSpec",
        "thompson": "metasd.bandits.thompson:Thompson",
        "epsilon-greedy": "metasd.bandits.epsilon_greedy:EpsilonGreedy",
        "sequential-halving": "metasd.bandits.sequential_halving:SequentialHalving",
        "explore-then-commit": "metasd.bandits.explore_then_commit:ExploreThenCommit",
        "exp3": "metasd.bandits.exp3:EXP3",
        "exp3spec": "metasd.bandits.exp3spec:EXP3Spec",
        "hedge": "metasd.bandits.hedge:Hedge",
        "fixed": "metasd.bandits.fixed:Fixed",
        "random": "metasd.bandits.random:Random",
        "round-robin": "metasd.bandits.round_robin:RoundRobin",
        "oracle": "metasd.bandits.oracle:Oracle",
        "router": "metasd.bandits.router:Router",
    },
)
__all__ = [
    "BANDITS",
    "REWARDS",
    "Bandit",
    "Context",
    "CostTable",
    "Reward",
    "Setting",
    "load_state",
    "make_bandit",
    "make_reward",
    "needs_scores",
    "save_state",
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
        spec: a registered name, "auto" among them, or `name:key=value,...`; a ready Bandit is returned as it is.
        arms: the pool's arms.
        reward: a registered reward, or "auto": the policy's own.
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
    name, options = parse_spec(spec)
    if not arms:
        raise refuse("arms", "at least one arm", "none")
    kind: type[Policy] = BANDITS.load(name)
    reward = kind.default_reward if reward == "auto" else reward
    if reward not in REWARDS:
        raise refuse("reward", f"one of auto, {', '.join(REWARDS)}", repr(reward))
    made = make_reward(reward, num_draft_tokens)
    return kind.from_options(Setting(tuple(arms), made, objective, num_draft_tokens, costs or CostTable()), options)


def needs_scores(bandit: Bandit) -> bool:
    """Whether a policy learns from the token scores of arms that did not draft."""
    return isinstance(bandit, Policy) and (bandit.needs_scores or bandit.setting.reward.needs_scores)


def check_names(bandit: str | Bandit, reward: str) -> None:
    """Fail on an unknown bandit or reward before anything expensive is loaded.

    Raises:
        UsageError: the known names are listed.
    """
    if isinstance(bandit, str):
        name = parse_spec(bandit)[0]
        if name not in BANDITS:
            raise UsageError(f"bandit: expected one of {', '.join(BANDITS.names())}, got {name!r}")
    if reward != "auto" and reward not in REWARDS:
        raise refuse("reward", f"one of auto, {', '.join(REWARDS)}", repr(reward))
