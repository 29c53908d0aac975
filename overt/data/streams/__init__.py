"""Tar shards in the layout of WebDataset: by index if files can seek, otherwise sequentially."""

from overt.data.streams.indexed import TarSamples as TarSamples
from overt.data.streams.sequential import TarStream as TarStream
