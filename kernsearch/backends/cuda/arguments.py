"""The one argument of a kernel, `ks_args`, as bytes: pointers, sizes, scalars, then maps at a multiple of 64."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

from ...errors import Rejected
from ...launch import Resolved
from ...sizes import evaluate
from .tensor_maps import ALIGNMENT, BYTES, Spec

MOST_BYTES = 4096


class Arguments:
    """The bytes of `ks_args` for one kernel of a call; sizes are in place, addresses and scalars are set.

    buffers  names, in the order in which `set_addresses` wants their addresses
    address  of the bytes, which stay where they are
    """

    def __init__(self, resolved: Resolved, names: dict[str, int]):
        kernel = resolved.kernel
        self.buffers = resolved.buffers
        plain = 8 * (len(self.buffers) + len(resolved.sizes) + len(resolved.scalars))
        start = -(-plain // ALIGNMENT) * ALIGNMENT if kernel.maps else plain
        self.size = start + BYTES * len(kernel.maps)
        if self.size > MOST_BYTES:
            raise Rejected(f"{kernel.template} takes {self.size} bytes of arguments, want {MOST_BYTES}", "execution")
        room = ctypes.create_string_buffer(self.size + ALIGNMENT)
        self.address = -(-ctypes.addressof(room) // ALIGNMENT) * ALIGNMENT
        offset = self.address - ctypes.addressof(room)
        self._room, self._bytes = room, memoryview(room).cast("B")[offset : offset + self.size]
        struct.pack_into(f"{len(resolved.sizes)}q", self._bytes, 8 * len(self.buffers), *resolved.sizes)
        self._pointers = struct.Struct(f"{len(self.buffers)}Q").pack_into
        self._numbers = struct.Struct(f"{len(resolved.scalars)}d").pack_into
        self._scalars_at = 8 * (len(self.buffers) + len(resolved.sizes))
        self._maps = []
        for position, made in enumerate(kernel.maps):
            spec = Spec(
                made.dtype,
                [evaluate(extent, names) for extent in made.extents],
                [evaluate(pitch, names) for pitch in made.pitches],
                made.box,
                made.swizzle,
                f"map {made.name} of {kernel.template}",
            )
            where = slice(start + BYTES * position, start + BYTES * (position + 1))
            self._maps.append((spec, self.buffers.index(made.buffer), evaluate(made.offset, names), where))
        self.set_scalars(resolved.scalars)

    def set_addresses(self, addresses: Sequence[int]) -> None:
        """Device addresses of `buffers`."""
        self._pointers(self._bytes, 0, *addresses)
        for spec, which, offset, where in self._maps:
            if not addresses[which]:
                continue  # an array of no elements, of which nothing is read
            self._bytes[where] = spec.at(addresses[which] + offset)

    def set_scalars(self, scalars: Sequence[float]) -> None:
        """Scalars in the order of the kernel's plan."""
        self._numbers(self._bytes, self._scalars_at, *scalars)

    def tobytes(self) -> bytes:
        return self._bytes.tobytes()
