"""The errors that are the user's to mend: each says what was found, what is allowed, what to do.

The command line prints them without a traceback; anything else that escapes is a bug of overt.
"""


class OvertError(Exception):
    """Something the user can mend; the message says how."""


class ConfigError(OvertError):
    """A key, type or value of the configuration, refused before anything starts."""


class LaunchError(OvertError):
    """The process was started in a way that cannot work (contradicting ranks, missing devices)."""


class DataError(OvertError):
    """A data set, or one file of it, that cannot be used."""


class CheckpointError(OvertError):
    """A checkpoint that is missing, broken, unsafe, or of another model."""


class NonFiniteError(OvertError):
    """Training met NaN or Inf and the configuration says to stop."""
