"""The arm that somebody who knows what kind of request it is would play: the yardstick of every policy."""

from collections.abc import Mapping
from typing import Any, Self

from metasd.bandits.base import Setting
from metasd.bandits.fixed import Fixed
from metasd.core import refuse


class Oracle(Fixed):
    """Plays a fixed arm for each label of a request (`SamplingParams.label`): `oracle:code=eagle-code,qa=eagle-qa`.

    Args:
        setting: what it plays for.
        arm_by_label: one of the pool's arms for each label; that of "other" for all that are not named.
        options: of `Policy`.
    """

    def __init__(self, setting: Setting, arm_by_label: Mapping[str, str], **options: Any) -> None:
        if not arm_by_label:
            raise refuse("oracle", "an arm for each label, as in oracle:code=eagle-code", "none")
        for label, arm in arm_by_label.items():
            if arm not in setting.arms:
                raise refuse(f"oracle, label {label}", f"one of {', '.join(setting.arms)}", repr(arm))
        self._table = dict(arm_by_label)
        super().__init__(setting, next(iter(self._table.values())), **options)

    @classmethod
    def from_options(cls, setting: Setting, options: Mapping[str, Any]) -> Self:
        common = cls.checked({key: value for key, value in options.items() if key in ("carry", "decay")})
        return cls(setting, {key: str(value) for key, value in options.items() if key not in common}, **common)

    def begin(self) -> None:
        self._arm = self.arm_of(self.context.label)

    def arm_of(self, label: str | None) -> str:
        """The arm for a label.

        Raises:
            UsageError: the label is not in the table, and there is no "other".
        """
        arm = self._table.get(label or "other", self._table.get("other"))
        if arm is None:
            raise refuse("label", f"one of {', '.join(self._table)}", repr(label))
        return arm
