"""The same numbers on an accelerator. Runs only where one is; also as a program: python tests/device/test_cuda.py"""

import pytest
import torch

import normfed as nf
from normfed.errors import Refused
from normfed.methods import METHODS
from normfed.testing import ResidualNet, difference, seeded, toy_federation

HERE = torch.cuda.is_available()
TOLERANCE = 1e-8  # float64; sums in another order, four rounds of them


def gap(name: str, engine: str) -> float:
    clients = toy_federation((9, 16, 13))
    settings = {"rounds": 4, "batch_size": 4, "lr": 0.05, "seed": 7}
    here = nf.simulate(seeded(ResidualNet), clients, METHODS[name](), engine="serial", **settings)
    there = nf.simulate(seeded(ResidualNet), clients, METHODS[name](), engine=engine, device="cuda", **settings)
    return difference(here, there)


@pytest.mark.skipif(not HERE, reason="no CUDA device on this machine")
@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_device_changes_no_number(name, engine):
    assert gap(name, engine) < TOLERANCE


@pytest.mark.skipif(not HERE, reason="no CUDA device on this machine")
def test_model_and_data_may_lie_on_the_device_already():
    clients = {
        name: nf.ClientData(train=tuple(part.cuda() for part in client.train))
        for name, client in toy_federation((9, 16)).items()
    }
    here = nf.simulate(seeded(ResidualNet), toy_federation((9, 16)), METHODS["fedbn"](), rounds=2)
    there = nf.simulate(seeded(ResidualNet).cuda(), clients, METHODS["fedbn"](), rounds=2, device="cuda")
    assert difference(here, there) < TOLERANCE


if __name__ == "__main__":
    worst = 0.0
    for name in sorted(METHODS):
        for engine in ("serial", "stacked"):
            try:
                found = gap(name, engine)
                worst = max(worst, found)
                print(f"{name} {engine} {found:.1e}", flush=True)
            except (Refused, Exception) as error:
                print(f"{name} {engine} FAILS {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)
                if engine == "stacked":
                    import traceback

                    print("".join(traceback.format_exc().splitlines(keepends=True)[-8:]), flush=True)
    print(f"largest gap {worst:.1e}")
