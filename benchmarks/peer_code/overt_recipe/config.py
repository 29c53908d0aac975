"""This recipe has no settings of its own."""

from dataclasses import dataclass


@dataclass
class Settings:
    pass
