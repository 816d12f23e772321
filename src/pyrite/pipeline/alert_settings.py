"""The constants of alerts: a project's alerts.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from pyrite.pipeline.errors import PipelineError

ALERTS_FILE = "alerts.toml"


class AlertSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Constants of the detector. The template's alerts.toml explains each."""

    threshold: float = 5.0
    """Distance from the expected value, in standard deviations, that a value or block must exceed."""
    margin: float = 1.1
    """Factor by which a distance must exceed the largest usual distances of the field."""
    usual_values: float = 0.997
    """Quantile of the field's past distances up to which a single value is usual."""
    usual_blocks: float = 0.99
    """The same for the mean of a block."""
    window: int = 60
    """Values whose median is the expected value; also the minimum before any judgement."""
    block: int = 12
    """Values in a block, whose mean reveals level shifts."""
    memory: int = 2000
    """Values after which distances in the past count half."""
    min_spread: float = 0.01
    """Minimum standard deviation, as a share of the median."""
    min_spread_of_jumps: float = 0.1
    """Minimum standard deviation, as a share of the field's 99th percentile of distances."""
    learn_values: int = 600
    """A field is judged after this many values ..."""
    learn_seconds: float = 2 * 86_400.0
    """... or after this time, whichever is first."""
    recurring: float = 1.5
    """A distance up to this multiple of one seen at this time of day is not reported again."""
    fade: float = 0.8
    """Share that remains, each day, of the distances seen at a time of day."""
    season_gain: float = 0.7
    """A season counts if its errors are below this share of those of the median."""
    rearm_gaps: float = 30.0
    """A field is armed again after this many of the device's usual gaps without an abnormal value ..."""
    rearm_seconds: float = 60.0
    """... and after this time."""
    silence: float = 20.0
    """A device is silent after this many times its median gap ..."""
    silence_of_long_gaps: float = 3.0
    """... and this many times its long gaps (the 95th percentile) ..."""
    silence_seconds: float = 60.0
    """... and after this time."""
    burst_seconds: float = 1.0
    """Messages closer together than this are one burst; gaps within it do not count."""
    min_gaps: int = 30
    """Gaps known before a silence is reported ..."""
    learn_silence_seconds: float = 3600.0
    """... unless the device has sent for this time."""
    max_alerts: int = 10
    """Alerts per device and hour; all others of the hour become one summary."""
    late_seconds: float = 60.0
    """A message this much older than the newest of its device is counted as late, and not judged."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not 0 < value < 1e9:
                raise ValueError(f"{name} = {value}: expected a number above 0 and below 1e9")
        for name in ("usual_values", "usual_blocks", "fade", "season_gain"):
            if getattr(self, name) >= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: expected a number below 1")


def read_settings(path: str | Path) -> AlertSettings:
    """Read alerts.toml; settings that it leaves out have their defaults. Raises PipelineError."""
    try:
        with open(path, "rb") as file:
            return msgspec.convert(tomllib.load(file), AlertSettings)
    except FileNotFoundError:
        return AlertSettings()
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise PipelineError(f"{path}: {error}") from None
