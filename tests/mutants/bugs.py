"""Bugs to plant, one at a time, in a copy of the core: each must be found.

They are the mistakes that schedulers really have. A test that none of them fails tests little; a
bug in this list that is not found is a hole in the simulation.
"""

from tests.mutants.memory_bugs import MEMORY_BUGS
from tests.mutants.planting import Bug

BUGS = [
    *MEMORY_BUGS,
    Bug(
        "log-probabilities go to another row",
        "logprobs.py",
        "told.chosen[taken][:, np.newaxis]",
        "told.chosen[: len(tokens)][:, np.newaxis]",
    ),
    Bug(
        "keys of blocks of another size are kept",
        "scheduler.py",
        "sequence.block_keys = []  # the block size may have changed",
        "pass",
        story="executor_block_size",
    ),
    Bug(
        "resumed output is computed anew",
        "sequence.py",
        "self.tokens: Int32s = np.concatenate([request.prompt, request.output])",
        "self.tokens: Int32s = request.prompt",
    ),
    Bug(
        "a row that failed goes on",
        "settling.py",
        "(status == _ERROR).nonzero()",
        "(status > _ERROR).nonzero()",
    ),
    Bug(
        "what just fits is refused",
        "fit.py",
        "if total > capacity.sequence_len_max:",
        "if total >= capacity.sequence_len_max:",
    ),
    Bug(
        "the queue is one longer than its bound",
        "scheduler.py",
        "if waiting >= self.config.waiting_max and",
        "if waiting > self.config.waiting_max and",
    ),
    Bug(
        "an unfinished prompt samples",
        "planner.py",
        "stop == moment.known + moment.pending",
        "stop > 0",
    ),
    Bug(
        "a token that is not known yet is not carried over",
        "frame_writer.py",
        "stop > moment.known\n",
        "stop > moment.known + 1\n",
    ),
    Bug(
        "an ending by length comes one token late",
        "settling.py",
        "known >= rows.length_limit[taken]",
        "known > rows.length_limit[taken]",
    ),
    Bug(
        "stop ids are overlooked",
        "settling.py",
        "ended = stopped | (",
        "ended = (stopped & False) | (",
    ),
    Bug(
        "a result of an earlier epoch is taken",
        "settling.py",
        "if result.epoch != batch.epoch or result.step < next_step:",
        "if result.step < next_step:",
    ),
    Bug(
        "a result that comes twice is taken twice",
        "settling.py",
        "if result.epoch != batch.epoch or result.step < next_step:",
        "if result.epoch != batch.epoch:",
    ),
    Bug(
        "one step too many is in flight, so that frames are overwritten",
        "scheduler.py",
        "len(batch.in_flight) > self.config.depth:",
        "len(batch.in_flight) > self.config.depth + 3:",
    ),
    Bug(
        "the budget is not spent",
        "planner.py",
        "budget = self._batch.step_tokens_max - rows",
        "budget = (self._batch.step_tokens_max - rows) // 2",
    ),
    Bug(
        "the budget is overdrawn by those who join",
        "planner.py",
        "max(0, budget - length - copied)",
        "max(0, budget - copied)",
    ),
    Bug(
        "a pre-empted sequence goes to the back",
        "roster.py",
        "        sequence.preemptions += 1\n",
        "        sequence.preemptions += 1\n"
        "        sequence.key = (*sequence.key[:-1], sequence.key[-1] + 100)\n",
    ),
    Bug(
        "memory is taken from the first in rank",
        "order.py",
        "            return running[-1]",
        "            return running[0]",
    ),
    Bug(
        "more urgent requests wait for their turn",
        "planner.py",
        "            self._yield_to_head()\n",
        "            pass\n",
        story="priority",
    ),
    Bug(
        "somebody small passes the first who waits",
        "planner.py",
        "            if hit is None:\n                break\n",
        "            if hit is None:\n"
        "                head = (list(roster.order.waiting) or [head])[-1]\n"
        "                hit = batch.hit(head)\n"
        "            if hit is None:\n"
        "                break\n",
    ),
    Bug(
        "a loss of the executor loses a request",
        "scheduler.py",
        "for sequence in list(batch.running):\n            self._roster.put_back",
        "for sequence in list(batch.running)[:-1]:\n            self._roster.put_back",
    ),
    Bug(
        "an innocent is blamed for the loss of the executor",
        "suspects.py",
        "is_alone = len(group) == 1 and not gone",
        "is_alone = 1 <= len(group) <= 3",
    ),
    Bug(
        "who was pre-empted meanwhile is no suspect",
        "roster.py",
        "for sequence in waiting:\n            if sequence in self.suspects:",
        "for sequence in waiting:\n            if False:",
        story="bad_request_preempted",
    ),
    Bug(
        "nothing bounds how often one is overtaken",
        "order.py",
        "if eldest.overtaken == self._overtakes_max:",
        "if False:",
    ),
    Bug(
        "a policy that answers nonsense stays in force",
        "scheduler.py",
        "if self._roster.order.take_fault():",
        "if self._roster.order.take_fault() and False:",
    ),
    Bug(
        "another policy finds the batch in the order of the last",
        "roster.py",
        "            self.batch.sort()\n",
        "            pass\n",
    ),
    Bug(
        "who ends while its KV is in the host keeps the blocks there",
        "roster.py",
        "self.batch.swap.drop(sequence.seq_id)",
        "pass",
        story="swap_abort",
    ),
    Bug(
        "whoever was suspected stays suspected",
        "settling.py",
        "roster.suspects.clear(table.occupant(lane) for lane in lanes.tolist())",
        "pass",
        story="bad_request",
    ),
]
