"""Those of the bugs that are about blocks, lanes and what is in them."""

from tests.mutants.planting import Bug

MEMORY_BUGS = [
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
]
