"""Tar shards in the layout of WebDataset: by index where files can seek, else in sequence."""

from overt.data.streams.indexed import TarSamples as TarSamples
from overt.data.streams.sequential import TarStream as TarStream
