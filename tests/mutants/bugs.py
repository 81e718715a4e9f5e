"""Bugs to plant, one at a time, in a copy of the core: each must be found.

They are the mistakes that schedulers really have. A test that none of them fails tests little; a
bug in this list that is not found is a hole in the simulation.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bug:
    """A change of one place in one file of scheduler_svc/core."""

    name: str
    file: str
    right: str
    """Stands exactly once in the file."""
    wrong: str
    story: str = ""
    """The scenario that finds it, where nothing but the letter of a policy is hurt, or where it
    takes more luck than some hundred worlds have. Empty: the simulation finds it."""


BUGS = [
    Bug(
        "blocks can be found before their tokens are computed",
        "batch.py",
        "full = np.minimum(moment.known, stop)",
        "full = moment.known.copy()",
    ),
    Bug(
        "the block of a last token that was never computed can be found",
        "batch.py",
        "written = min(int(table.known[lane]) - 1, int(table.planned[lane]))",
        "written = int(table.known[lane])",
    ),
    Bug(
        "a prefix hit may cover all known tokens",
        "batch.py",
        "count = (known - 1) // size",
        "count = known // size",
    ),
    Bug(
        "a hit that does not fit yet keeps its blocks",
        "batch.py",
        "cost = -(-known // size) - self.pool.count_held(found)",
        "cost = -(-known // size) - self.pool.count_held(found)\n        self.pool.hold(found)",
    ),
    Bug(
        "what is handed over as one block's content is another's",
        "blocks.py",
        "tuple(self._key_of[block] for block in self._cached)",
        "tuple(self._key_of[block] for block in reversed(self._cached))",
    ),
    Bug(
        "a block that was handed over is free as well",
        "blocks.py",
        "self._free = [block for block in self._free if block not in self._cached]",
        "pass",
    ),
    Bug(
        "the number of blocks rounds down",
        "batch.py",
        "fresh = -(-len(sequence.tokens) // table.block_size) - len(hit)",
        "fresh = len(sequence.tokens) // table.block_size - len(hit)",
    ),
    Bug(
        "one sequence more than there are rows",
        "batch.py",
        "return len(self.running) < self.running_max",
        "return len(self.running) <= self.running_max",
    ),
    Bug(
        "a row for the last token, which nobody reads",
        "batch.py",
        "np.minimum(length, self.rows.length_limit - 1)",
        "np.minimum(length, self.rows.length_limit)",
    ),
    Bug(
        "the chain of keys forgets its beginning",
        "batch.py",
        "parent = keys[-1] if keys else ROOT",
        "parent = ROOT",
    ),
    Bug(
        "blocks are not given back at the end",
        "batch.py",
        "self.pool.release(self.table.block_table(sequence.lane))",
        "self.pool.release(self.table.block_table(sequence.lane)[1:])",
    ),
    Bug(
        "the prefix cache survives the executor",
        "batch.py",
        "self.pool = BlockPool(capacity.num_blocks)",
        "pools = self.__class__.__dict__.get('pools') or {}\n"
        "        type(self).pools = pools\n"
        "        self.pool = pools.setdefault(capacity, BlockPool(capacity.num_blocks))",
    ),
    Bug(
        "an evicted block can still be found",
        "blocks.py",
        "del self._by_key[self._key_of.pop(block)]",
        "self._key_of.pop(block)",
    ),
    Bug(
        "a block that is held again stays on the list of what can be evicted",
        "blocks.py",
        "del self._cached[block]\n",
        "pass\n",
    ),
    Bug(
        "a shared block goes with its first holder",
        "blocks.py",
        "            self._references[block] -= 1\n",
        "            self._references[block] = 0\n",
    ),
    Bug(
        "the new occupant of a lane inherits tokens in flight",
        "lanes.py",
        "self.pending[lane] = 0",
        "pass",
    ),
    Bug(
        "results of a lane's former occupant are taken for the new one's",
        "lanes.py",
        '"""Frees the lane. Results of rows that are still in flight for it become stale."""\n'
        "        self.tenancy[lane] += 1",
        '"""Frees the lane."""',
    ),
    Bug(
        "the new occupant of a lane inherits stop ids",
        "lanes.py",
        "self.stop_ids[lane] = NO_TOKEN",
        "pass",
    ),
    Bug(
        "the new occupant of a lane inherits the seed",
        "lanes.py",
        "self.seed[lane] = sampling.seed",
        "pass",
    ),
    Bug(
        "who has penalties starts from blocks of others",
        "batch.py",
        "return self.prefix_cache and not sequence.request.needs_history",
        "return self.prefix_cache",
    ),
    Bug(
        "log-probabilities go to another row",
        "logprobs.py",
        "told.chosen[taken][:, np.newaxis]",
        "told.chosen[: len(tokens)][:, np.newaxis]",
    ),
    Bug(
        "the new occupant of a lane inherits the wish for log-probabilities",
        "lanes.py",
        "0 if request.logprobs is None else",
        "self.logprobs[lane] if request.logprobs is None else",
    ),
    Bug(
        "the new occupant of a lane inherits penalties",
        "lanes.py",
        "RowFlag.PENALISED if request.needs_history else 0",
        "self.standing_flags[lane] | (RowFlag.PENALISED if request.needs_history else 0)",
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
        "min_tokens counts the prompt",
        "lanes.py",
        "self.ban_until[lane] = len(request.prompt) + request.min_tokens",
        "self.ban_until[lane] = request.min_tokens",
    ),
    Bug(
        "who comes back after a pre-emption is not computed anew",
        "lanes.py",
        "self.planned[lane] = cached_tokens",
        "self.planned[lane] = known - 1 if sequence.preemptions else cached_tokens",
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
        "KV is copied out after its blocks were given to others",
        "swap.py",
        "out = np.array([(device, host) for host, device in self._out.items()], np.int32)",
        "now, before = dict(self._out), getattr(type(self), 'late', {})\n"
        "        type(self).late = now\n"
        "        out = np.array([(device, host) for host, device in before.items()], np.int32)",
    ),
    Bug(
        "host blocks are given back while KV waits in them",
        "swap.py",
        "hosts = [self._free.pop() for _ in range(count)]",
        "hosts = self._free[-count:]",
    ),
    Bug(
        "KV comes back to other blocks than it left",
        "swap.py",
        "zip(table[hit:end], hosts, strict=True)",
        "zip(table[hit:end], reversed(hosts), strict=True)",
    ),
    Bug(
        "KV is put behind blocks that are found, not in its place",
        "swap.py",
        "hosts = swapped.blocks[hit - swapped.first :]",
        "hosts = swapped.blocks[: end - hit]",
    ),
    Bug(
        "the beginning that was left to others is not missed",
        "swap.py",
        "if not swapped.first <= hit < end:",
        "if not hit < end:",
    ),
    Bug(
        "a token counts as swapped whose KV was never written",
        "batch.py",
        "tokens = min(int(table.planned[lane]), int(table.known[lane]) - 1)",
        "tokens = int(table.known[lane]) - 1",
        story="swap_half_read",
    ),
    Bug(
        "whose history counts is swapped",
        "batch.py",
        "        if sequence.request.needs_history:\n            return False\n",
        "",
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
