"""overt/tools/launch/settings.py: defaults, the site's file and the command line, in this order."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from overt.errors import ConfigError
from overt.tools.launch.settings import DEFAULTS, SlurmSettings, read_settings, seconds


def test_every_key_has_one_home() -> None:
    assert list(OmegaConf.load(DEFAULTS)) == list(SlurmSettings.__dataclass_fields__)


def test_the_command_line_wins_over_the_site_and_the_site_over_the_defaults(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("partition: gpu\naccount: lab\nenv: {A: '1'}\nmodules: [cuda]\n")
    settings = read_settings(site, {"partition": "night", "env": {"B": "2"}})
    assert (settings.partition, settings.account) == ("night", "lab")
    assert settings.env == {"A": "1", "B": "2"}
    assert settings.modules == ["cuda"]
    assert settings.signal_seconds == OmegaConf.load(DEFAULTS).signal_seconds


def test_words_of_a_site_are_text_where_slurm_and_the_shell_mean_text(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(
        "time: 24:00:00\naccount: 0123\npartition: on\nqos: null\ncpus_per_process: 12\n"
        "env: {NCCL_DEBUG: off, ON: 010, AT: '${HOME}/a'}\n"
        "setup: ['export PATH=${HOME}/bin:$PATH', 'echo \\${A} \\\\${B}']\n"
    )
    settings = read_settings(site, {"env": {"B": "${TMP}"}})
    assert seconds(settings.time) == 86400
    assert (settings.account, settings.partition, settings.qos) == ("0123", "on", None)
    assert settings.cpus_per_process == 12
    assert settings.env == {
        "NCCL_DEBUG": "off", "ON": "010", "AT": "${HOME}/a", "B": "${TMP}"
    }  # fmt: skip
    assert settings.setup == ["export PATH=${HOME}/bin:$PATH", r"echo \${A} \\${B}"]
    site.write_text("# nothing yet\n")
    assert read_settings(site, {}) == read_settings(None, {})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tasks_per": "gpus"}, "did you mean gpu?"),
        ({"container_runtime": "docker"}, "use one of apptainer, pyxis"),
        ({"signal_seconds": 0}, "it must be at least 1"),
        ({"max_fruitless": -1}, "it must be at least 0"),
        ({"time": "1:00", "signal_seconds": 60}, "ask for more time"),
        ({"time": "a day"}, "DAYS-HH:MM:SS"),
        ({"env": {"A B": "c"}}, "not the name of a variable"),
        ({"partition": "gpu\nrm -rf runs"}, "partition='gpu\\nrm -rf runs'; give one name"),
        ({"account": " "}, "account=' '; give one name"),
        ({"sbatch": ["mem=0"]}, "write it as --mem=0"),
        ({"cpus_per_process": "many"}, "cpus_per_process"),
        ({"partitoin": "gpu"}, "did you mean partition?"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(
    options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_settings(None, options)
    assert expected in str(refused.value)


def test_a_site_is_refused_by_its_name(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    with pytest.raises(ConfigError, match="no such file"):
        read_settings(site, {})
    site.write_text("acount: lab\n")
    with pytest.raises(ConfigError, match=r"site\.yaml: unknown key acount .*account"):
        read_settings(site, {})
    site.write_text("a: [")
    with pytest.raises(ConfigError, match="not valid YAML"):
        read_settings(site, {})
    site.write_text("[gpu]")
    with pytest.raises(ConfigError, match=r"--site .*site\.yaml is not a mapping"):
        read_settings(site, {})


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("1:30:00", 5400),
        ("2-12", 216000),
        ("2-12:30", 217800),
        ("2-12:30:05", 217805),
    ],
)
def test_times_are_read_as_sbatch_reads_them(time: str, expected: int) -> None:
    assert seconds(time) == expected
