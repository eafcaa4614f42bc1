"""pumice.devices(), which lists the devices on which models can run."""

from __future__ import annotations

from dataclasses import dataclass

from .. import _core
from ..common.display import html_table, size, text_table
from ..common.interruptible import interruptible

_HEADERS = ["id", "name", "type", "driver", "free", "total", "features", "usable"]
_RIGHT = ["free", "total"]


@dataclass(frozen=True)
class DeviceInfo:
    """One device on which models can run.

    id: what load(device=) takes, "cpu" or "vulkan:0".
    name: the name that the system or the driver gives it.
    type: "cpu", or the kind of GPU: "discrete", "integrated", "virtual", "software" or "other".
    driver: name and version of the driver, or "".
    memory_total, memory_free: its memory in bytes, and how much of it is free now.
    features: the instruction set that the CPU's kernels use, or what a GPU can do ("subgroup 32", "integer dot").
    usable: whether models can run on it.
    why_not: why it is not usable, or "" if it is."""

    id: str
    name: str
    type: str
    driver: str
    memory_total: int
    memory_free: int
    features: tuple[str, ...]
    usable: bool
    why_not: str

    def _row(self) -> list[str]:
        usable = "yes" if self.usable else f"no: {self.why_not}"
        memory = [size(self.memory_free), size(self.memory_total)]
        return [self.id, self.name, self.type, self.driver, *memory, " ".join(self.features), usable]


class DeviceList(list[DeviceInfo]):
    """A list of DeviceInfo that prints as a table."""

    def __repr__(self) -> str:
        return text_table(_HEADERS, [d._row() for d in self], right=_RIGHT)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return html_table(_HEADERS, [d._row() for d in self], right=_RIGHT, caption="pumice devices")


def devices() -> DeviceList:
    """Returns the devices of this machine as a list of DeviceInfo, which prints as a table (also in notebooks). load(device=) takes the
    `id` of a device."""
    return DeviceList(
        DeviceInfo(
            id=str(d["id"]),
            name=str(d["name"]),
            type=str(d["type"]),
            driver=str(d.get("driver") or ""),
            memory_total=int(d["memory_total"]),
            memory_free=int(d["memory_free"]),
            features=tuple(map(str, d.get("features") or ())),
            usable=bool(d["usable"]),
            why_not=str(d.get("why_not") or ""),
        )
        for d in interruptible(_core.devices)
    )
