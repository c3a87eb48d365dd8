"""The GPU image on a machine without a GPU: `make test-gpu-image` sees to the Docker engine that it needs."""

import os
from pathlib import Path

import pytest

from tests.gpu_image.image import Image
from tests.support.fake_cuda import FakeCuda


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(1200))
            if "PPD_TEST_GPU_IMAGE" not in os.environ:
                item.add_marker(pytest.mark.skip(reason="run by `make test-gpu-image`"))


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeCuda:
    return FakeCuda(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def image(driver: FakeCuda) -> Image:
    return Image(os.environ["PPD_TEST_GPU_IMAGE"], driver)


@pytest.fixture(scope="session")
def base(driver: FakeCuda) -> Image:
    """What the image was built on."""
    return Image(os.environ["VLLM_IMAGE"], driver)
