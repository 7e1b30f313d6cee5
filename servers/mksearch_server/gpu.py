"""The GPUs of this machine as the driver's library NVML sees them, where both are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Self

__all__ = ["Gpu"]


class Gpu:
    """Reads the GPUs; only the optional package ``nvidia-ml-py`` makes this possible."""

    def __init__(self, nvml: Any) -> None:
        """Use the module ``pynvml``, initialised."""
        self._nvml = nvml

    @classmethod
    def find(cls) -> Self | None:
        """Return what reads the GPUs; None without the package, the driver or a GPU."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            return cls(pynvml) if pynvml.nvmlDeviceGetCount() > 0 else None
        except pynvml.NVMLError:
            return None

    def readings(self) -> Iterator[tuple[str, str, list[tuple[int, float]]]]:
        """Yield name with unit, text, and (index, value) of every GPU that tells the value."""
        nvml = self._nvml
        kinds: tuple[tuple[str, str, Callable[[Any], float]], ...] = (
            (
                "memory_used_bytes",
                "GPU memory in use, by all programs",
                lambda device: nvml.nvmlDeviceGetMemoryInfo(device).used,
            ),
            (
                "memory_bytes",
                "GPU memory",
                lambda device: nvml.nvmlDeviceGetMemoryInfo(device).total,
            ),
            (
                "utilization_ratio",
                "Share of the time in which the GPU computed, 0..1",
                lambda device: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
            ),
            (
                "temperature_celsius",
                "Temperature of the GPU",
                lambda device: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
            ),
            (
                "power_watts",
                "Power that the GPU draws",
                lambda device: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
            ),
        )
        for name, text, read in kinds:
            yield name, text, list(self._each(read))

    def _each(self, read: Callable[[Any], float]) -> Iterator[tuple[int, float]]:
        for index in range(self._nvml.nvmlDeviceGetCount()):
            # Not every device tells everything.
            with suppress(self._nvml.NVMLError):
                yield index, float(read(self._nvml.nvmlDeviceGetHandleByIndex(index)))
