"""A gate that holds every process of the recipe `gated` at one step, as gated_toy describes."""

from pathlib import Path

from slurm_cluster import PATIENCE_SECONDS, wait_for


class Gate:
    """Holds every process of the recipe `gated` at one step."""

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.step = folder, step
        folder.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        return {"OVERT_GATE": str(self.folder), "OVERT_GATE_STEP": str(self.step)}

    def wait_for(self, processes: int) -> None:
        """Until so many processes stand at the gate."""
        wait_for(
            f"{processes} process(es) at the gate",
            lambda: len(list(self.folder.glob("waiting_*"))) == processes,
            PATIENCE_SECONDS,
        )

    def open(self) -> None:
        (self.folder / "open").touch()
