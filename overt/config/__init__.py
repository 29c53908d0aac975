"""From the command line to a checked, typed configuration. Never imports torch."""

from overt.config.checked import (
    RECIPE_SECTIONS,
    Config,
    build_recipe,
    check,
    import_target,
    schema_of,
)
from overt.config.compose import (
    CONF,
    GROUPS,
    add_package,
    chosen_options,
    compose_values,
    defaults_of,
    differences,
    expand_sweep,
    group_options,
    load,
    sweep_names,
)

__all__ = [
    "CONF",
    "GROUPS",
    "RECIPE_SECTIONS",
    "Config",
    "add_package",
    "build_recipe",
    "check",
    "chosen_options",
    "compose_values",
    "defaults_of",
    "differences",
    "expand_sweep",
    "group_options",
    "import_target",
    "load",
    "schema_of",
    "sweep_names",
]
