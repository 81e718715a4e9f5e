"""Matrix products x W^T for few rows, where reading W is all that takes time.

cuBLAS serves any shape well, but with a few rows it leaves part of the memory's speed unused: small
weights end before the memory is busy, and split ones need a second kernel. Here W goes through the
tensor cores as the left side (its rows are the 64 lines that they want, x fills the other side),
the tensor memory accelerator streams it, the work is cut so that it fills the device once, and the
parts are left to whoever reads the product. The kernel is launched before its predecessor has ended
and asks the L2 for its first bytes of W meanwhile; only x must be waited for.

    W [N, K]   program (n, part): rows [n * BLOCK_N : ...), columns of its part of K
    out [P, T, N] float32 parts, or [1, T, N] in the model's dtype
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from executor_svc.cuda.kernels import early_launch

ROWS_MAX = 64
"""Rows of x up to which this beats cuBLAS."""
_AHEAD_BYTES = 512
"""What a program asks the L2 for of each of its rows of W while it waits for x."""


class _Cut(NamedTuple):
    block_n: int
    block_k: int
    parts: int
    stages: int


@triton.jit(do_not_specialize=["rows"])
def _product(
    x, weight, weight_map, out, rows, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PARTS: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK_N
    part = tl.program_id(1)
    share = K // PARTS
    begin = part * share
    line = first + tl.arange(0, BLOCK_N)
    address = weight.to(tl.int64) + (line.to(tl.int64) * K + begin) * 2
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r",
        [address, tl.full([BLOCK_N], AHEAD, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    row = tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_K)
    real = row < rows
    gdc_launch_dependents()
    gdc_wait()
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for k in range(begin, begin + share, BLOCK_K):
        w = weight_map.load([first, k])
        v = tl.load(x + row[:, None] * K + (k + column)[None, :], mask=real[:, None], other=0.0)
        total = tl.dot(w, tl.trans(v), total)
    target = out + (part * rows + row[None, :]) * N + line[:, None]
    tl.store(target, total.to(out.dtype.element_ty), mask=real[None, :])


class Weight:
    """A weight [N, K], and how its products with few rows are cut."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._cut = _cut(tensor)
        if self._cut is not None:
            block = [self._cut.block_n, self._cut.block_k]
            shape, strides = list(tensor.shape), list(tensor.stride())
            self._map = TensorDescriptor(tensor, shape, strides, block)

    def product(self, x: Tensor) -> Tensor:
        """x [T, K] times the weight: [P, T, N], to be added up over P."""
        if self._cut is None or len(x) > ROWS_MAX:
            return linear(x, self.tensor)[None]
        (rows, inputs), outputs, cut = x.shape, self.tensor.shape[0], self._cut
        dtype = x.dtype if cut.parts == 1 else torch.float32
        out = torch.empty(cut.parts, rows, outputs, dtype=dtype, device=x.device)
        _product[(outputs // cut.block_n, cut.parts)](
            x, self.tensor, self._map, out, rows, outputs, inputs,
            BLOCK_M=max(16, triton.next_power_of_2(rows)), BLOCK_N=cut.block_n,
            BLOCK_K=cut.block_k, PARTS=cut.parts, AHEAD=_AHEAD_BYTES, launch_pdl=True,
            num_warps=4, num_stages=cut.stages,
        )  # fmt: skip
        return out


def _cut(weight: Tensor) -> _Cut | None:
    """How to cut the products of a weight; None: leave them to cuBLAS.

    The rules are what measured best on an H200 for the shapes of 1B and 8B models.
    """
    if not early_launch(weight.device) or weight.dtype not in (torch.bfloat16, torch.float16):
        return None
    outputs, inputs = weight.shape
    if outputs % 128 or inputs % 1024 or not weight.is_contiguous():
        return None
    processors = torch.cuda.get_device_properties(weight.device).multi_processor_count
    blocks = outputs // 64
    if blocks >= processors:
        return _Cut(128 if blocks >= 2 * processors else 64, 128, 1, 4)
    parts = 1 << ((processors // blocks).bit_length() - 1)  # one program a processor, at most
    if parts * blocks < 0.8 * processors:
        return _Cut(64, 64, 2 * parts, 6)
    return _Cut(64, 128, parts, 6)
