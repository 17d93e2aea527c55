"""What plug-ins for engines share: which steps were ours and why others were not, contexts, what ranks can do."""
from __future__ import annotations

import atexit
import collections
import logging
import os
from collections.abc import Sequence
from typing import Any

import torch

from ._context import Context, Error, supports
from ._engine_head import DTYPES, Unserved
from ._rules import ScreenBits

_SCREENS: dict[str, ScreenBits] = {"off": 0, "8": 8, "4": 4}
_LEAST_WORK = 192 << 20  # bytes to store logits in, which engines would otherwise have for their KV cache


class Steps:
    """Steps of this process by what drew them: "fused", or "stock: ..." with the reason, which is logged once."""

    def __init__(self, engine: str, logger: logging.Logger) -> None:
        self.engine, self.logger = engine, logger
        self.counts: collections.Counter[str] = collections.Counter()
        self._at_exit = False

    def count(self, name: str) -> None:
        self.counts[name] += 1
        if self.counts[name] == 1 and name != "fused":
            self.logger.info("flashsampling: %s draws steps itself that have this: %s", self.engine,
                             name.replace("stock: ", ""))

    def unserved(self, reason: str) -> str:
        """Logs and returns why no step is ours."""
        self.logger.info("flashsampling: %s's own sampler draws every step: %s", self.engine, reason)
        return reason

    def log_at_exit(self) -> None:
        """All numbers go to the log when the process ends."""
        if not self._at_exit:
            self._at_exit = True
            atexit.register(self._summary)

    def _summary(self) -> None:
        if self.counts:
            numbers = ", ".join("%s %d" % item for item in sorted(self.counts.items()))
            self.logger.info("flashsampling: steps: %s", numbers)


def is_off(variable: str) -> bool:
    """Whether this environment variable turns a plug-in off."""
    return os.environ.get(variable, "on").lower() in ("off", "0", "no", "false")


def screen_bits(variable: str) -> ScreenBits:
    """How many bits the screen of a head is to have by this environment variable, 0: no screen."""
    text = os.environ.get(variable, "off")
    if text not in _SCREENS:
        raise ValueError("%s is %r, expected one of %s" % (variable, text, ", ".join(_SCREENS)))
    return _SCREENS[text]


def context_of(device: torch.device, variable: str, work: int = 0) -> Context:
    """A context of this device. `variable` names the environment variable with the MiB that rules have to store logits
    in, `work` the bytes where it is not set, if that is more than 192 MiB; Unserved where there is none."""
    if device.type == "cpu":
        return Context("cpu", threads=torch.get_num_threads())
    if device.type != "cuda":
        raise Unserved("device %s" % device.type)
    try:
        asked = os.environ.get(variable)
        room = int(float(asked) * 2**20) if asked else max(_LEAST_WORK, work)
        return Context("cuda", device=device.index or 0, fallback_bytes=room)
    except Error as error:
        raise Unserved(error.text) from None


class RanksSupport:
    """What a device draws over the ranks of a head; asked once for each kind of step."""

    def __init__(self, device: torch.device, dtype: torch.dtype, flags: int) -> None:
        self.device: Any = device.type
        self.dtype, self.flags = DTYPES[dtype], flags
        self._refused: dict[tuple[str, ...], str] = {}

    def check(self, cuts: bool, rules: Sequence[Any], results: Sequence[Any]) -> None:
        """Unserved where a step with these is not."""
        # Lists of candidates that prove too short are known on the device alone, and only the host could go on.
        if cuts:
            raise Unserved("top-k, top-p or min-p over ranks")
        if "rank" in results:
            raise Unserved("the rank of a token over ranks")
        key = (*rules, "", *results)
        if key not in self._refused:
            done, why = supports(self.device, call="partial", dtype=self.dtype, rules=rules, results=results,
                                 flags=self.flags)
            self._refused[key] = "" if done else why
        if self._refused[key]:
            raise Unserved(self._refused[key])
