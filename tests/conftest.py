import pytest
import torch

torch.set_num_threads(1)  # small tensors; and one test process per core


@pytest.fixture(autouse=True)
def _nothing_global_is_left_changed():
    """A library that sets torch's defaults, or leaves gradients off, changes its user's program."""
    before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    yield
    assert (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()) == before


@pytest.fixture(params=["serial", "stacked"])
def engine(request):
    return request.param
