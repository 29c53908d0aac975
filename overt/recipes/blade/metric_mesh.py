"""The mesh on which joints and vertices are compared, following the protocols.

Predictions are SMPL-X bodies. SMPL labels are compared on SMPL's mesh, to which a sparse matrix
maps the vertices of SMPL-X.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from overt.data.people.human_data import HumanData, require_directions
from overt.errors import DataError
from overt.geometry.body import BodyModel
from overt.geometry.body_anny import ANNY
from overt.geometry.body_files import CAPSULE, load_body
from overt.geometry.body_transfer import VertexTransfer, load_transfer
from overt.recipes.blade.config import BodySettings

# Files needed to score on SMPL's mesh.
SCORED_BY = {
    "smpl": "SMPL_NEUTRAL.pkl",
    "transfer": "made by `overt data body-transfer smplx2smpl_deftrafo_setup.pkl OUT.npz`",
    "smpl_joint_regressor": "J_regressor_h36m.npy",
}


class MetricMesh:
    """Compares joints and vertices on one mesh: the body's own, or SMPL's."""

    def __init__(self, body: BodyModel, settings: BodySettings, labeled_with_smplx: bool) -> None:
        self.body, self.labeled_with_smplx = body, labeled_with_smplx
        self.transfer: VertexTransfer | None = None
        self.smpl: BodyModel | None = None
        if labeled_with_smplx and body.joints17 is not None:
            return
        if not labeled_with_smplx and settings.model in (CAPSULE, ANNY):
            raise DataError(
                f"model.body.model={settings.model} is the body of rendered people, but these are "
                "labeled with SMPL; set model.body.model to body_models/smplx/SMPLX_NEUTRAL.npz "
                "(smpl-x.is.tue.mpg.de, registration)"
            )
        missing = [key for key in SCORED_BY if getattr(settings, key) is None]
        if missing:
            alternative = ", or model.body.joint_regressor for SMPL-X itself" * labeled_with_smplx
            raise DataError(
                f"people labeled with {'SMPL-X' if labeled_with_smplx else 'SMPL'} are scored on "
                "SMPL's mesh: set "
                + ", ".join(f"model.body.{key} ({SCORED_BY[key]})" for key in missing)
                + alternative
            )
        assert settings.smpl is not None
        assert settings.transfer is not None
        regressor, key = settings.smpl_joint_regressor, "model.body.smpl_joint_regressor"
        file = load_body(settings.smpl, "model.body.smpl", regressor, key)
        device = body.template.device
        self.smpl = BodyModel(file).to(device)
        counts = (len(body.template), len(file.v_template))
        transfer = load_transfer(settings.transfer, "model.body.transfer", *counts)
        self.transfer = VertexTransfer(transfer).to(device)

    @property
    def of_labels(self) -> BodyModel:
        """Return the body model of the labels."""
        return self.body if self.labeled_with_smplx or self.smpl is None else self.smpl

    def check(self, data: HumanData) -> None:
        """Reject labels with more shape coefficients than their body has directions."""
        group, key = ("smplx", "model") if self.labeled_with_smplx else ("smpl", "smpl")
        require_directions(data, group, self.of_labels.shape_numbers, f"model.body.{key}")

    def of_prediction(self, vertices: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return vertices and 17 joints, in meters."""
        mesh = vertices if self.transfer is None else self.transfer(vertices)
        return _numbers(mesh), _numbers((self.smpl or self.body).joints_of_metrics(mesh))

    def of_truth(self, vertices: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self.labeled_with_smplx:
            return self.of_prediction(vertices)
        return _numbers(vertices), _numbers(self.of_labels.joints_of_metrics(vertices))


def _numbers(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.double().cpu().numpy()
