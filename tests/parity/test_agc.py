"""Adaptive gradient clipping, from the published equation: rows are PyTorch's output units."""

import numpy as np
import pytest
import torch

from normfed.methods.agc import EPS, clip_unitwise

from support import PARITY, golden


@pytest.mark.parametrize("case", golden("agc")["cases"], ids=lambda case: f"{case['shape']} {case['lambda']}")
def test_parity(case):
    assert case["eps"] == EPS
    weight, grad = torch.tensor(case["W"], dtype=torch.float64), torch.tensor(case["G"], dtype=torch.float64)
    expected = case.get("clipped_vector_norm", case.get("clipped_rows"))
    clipped = clip_unitwise(grad, weight, case["lambda"]).numpy()
    np.testing.assert_allclose(clipped.ravel(), np.ravel(expected), atol=PARITY, rtol=0)
