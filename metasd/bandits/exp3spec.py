"""EXP3Spec of BanditSpec (Hou et al., arXiv 2505.15141): EXP3 on the loss of accepted tokens."""

from metasd.bandits.exp3 import EXP3


class EXP3Spec(EXP3):
    """EXP3 whose estimates are of losses, -(1 - gain) / probability: an arm that was not played loses nothing, and what
    is estimated varies less where gains are large. Its own reward is the count of accepted tokens.
    """

    default_reward = "be"

    def estimate(self, gain: float, chance: float) -> float:
        return (gain - 1) / chance
