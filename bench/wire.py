"""What the wire costs the host: sealing and reading frames. `python -m bench.wire`

Prints the best of several rounds, in microseconds, for decode steps of 2 to 256 rows and one mixed
step. Sizes are those of an 8B model with 16-token blocks and sequences of about 1,000 tokens.
"""

import random
import sys
import timeit
from collections.abc import Callable

from svc_wire.capacity import Capacity
from svc_wire.frames import PlanFrame, ResultFrame
from svc_wire.ids import RowFlag
from tests.support.plans import RowSpec, fill_plan, plan_buffer, random_result, result_buffer

CAPACITY = Capacity(
    num_blocks=32768, block_size=16, rows_max=256, tokens_max=2048, lanes=256,
    model_len_max=8192, vocab_size=128256,
)  # fmt: skip
DECODE, LENGTH = int(RowFlag.SAMPLES | RowFlag.CARRY), 1000


def best_us(call: Callable[[], object], repeat: int = 2000, number: int = 5) -> float:
    """The fastest of many short rounds: on a busy machine a long one is never left alone."""
    return min(timeit.repeat(call, number=number, repeat=repeat)) / number * 1e6


def measure(name: str, rows: list[RowSpec]) -> str:
    """One line: the cost of each side's call for a plan with these rows."""
    rng, n = random.Random(0), len(rows)
    plan = PlanFrame(plan_buffer(CAPACITY), CAPACITY, writable=True)
    fill_plan(plan, rows, rng, epoch=1, step=1)
    frame = ResultFrame(result_buffer(CAPACITY), CAPACITY, writable=True)
    result = random_result(rng, CAPACITY, n, epoch=1, step=1)
    counts = {
        "rows": n,
        "tokens": int(plan.query_indptr[n]),
        "blocks": int(plan.block_indptr[n]),
        "samples": sum(bool(row.flags & RowFlag.SAMPLES) for row in rows),
    }
    costs = [
        best_us(lambda: plan.seal(epoch=1, step=1, **counts)),
        best_us(lambda: plan.read(epoch=1, step=1)),
        best_us(lambda: frame.write(result)),
        best_us(lambda: frame.read(epoch=1, step=1, rows=n)),
    ]
    return f"{name:<22}" + "".join(f"{cost:>14.1f}" for cost in costs)


def main() -> None:
    lines = [
        f"{'microseconds':<22}{'plan seal':>14}{'plan read':>14}{'result write':>14}{'read':>14}"
    ]
    for n in (2, 32, 256):
        rows = [RowSpec(lane, LENGTH - 1, LENGTH, DECODE) for lane in range(n)]
        lines.append(measure(f"decode, {n} rows", rows))
    mixed = [RowSpec(lane, LENGTH - 1, LENGTH, DECODE) for lane in range(31)]
    lines.append(measure("31 rows + 2,000 tokens", [*mixed, RowSpec(31, 0, 2000, 1)]))
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
