"""The block pool as a state machine, against a model of sets."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scheduler_svc.core.blocks import BlockPool

KEYS = [bytes([key]) for key in range(6)]
PICK = st.integers(0, 100)


class PoolMachine(RuleBasedStateMachine):
    """Tables that hold blocks, and what each key was last registered for."""

    @initialize(num_blocks=st.integers(1, 8))
    def begin(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.tables: list[list[int]] = []
        self.registered: dict[bytes, int] = {}

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        if count <= self.pool.available:
            taken = self.pool.take(count)
            held = {block for table in self.tables for block in table}
            assert len(set(taken)) == count
            assert not held & set(taken), "a held block was handed out"
            for key in [key for key, block in self.registered.items() if block in taken]:
                del self.registered[key]  # evicted
            self.tables.append(taken)

    @precondition(lambda self: self.tables)
    @rule(which=PICK)
    def release(self, which: int) -> None:
        self.pool.release(self.tables.pop(which % len(self.tables)))

    @precondition(lambda self: self.tables)
    @rule(which=PICK, index=PICK, key=st.sampled_from(KEYS))
    def register(self, which: int, index: int, key: bytes) -> None:
        table = self.tables[which % len(self.tables)]
        block = table[index % len(table)]
        self.pool.register(block, key)
        if block not in self.registered.values():
            self.registered.setdefault(key, block)

    @precondition(lambda self: self.tables)
    @rule(which=PICK)
    def count_shared(self, which: int) -> None:
        which %= len(self.tables)
        others = {block for table in self.tables[:which] for block in table}
        others |= {block for table in self.tables[which + 1 :] for block in table}
        count = self.pool.count_shared(self.tables[which])
        leading, rest = self.tables[which][:count], self.tables[which][count:]
        assert set(leading) <= others
        assert not rest or rest[0] not in others

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4, unique=True))
    def hold_a_hit(self, keys: list[bytes]) -> None:
        found = self.pool.find(keys)
        assert found == [self.registered[key] for key in keys[: len(found)]]
        assert len(found) == len(keys) or keys[len(found)] not in self.registered
        held = {block for table in self.tables for block in table}
        assert self.pool.count_held(found) == len(held & set(found))
        if found:
            before = self.pool.available
            self.pool.hold(found)
            assert self.pool.available == before - len(set(found) - held)
            self.tables.append(found)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4))
    def forget(self, keys: list[bytes]) -> None:
        before = self.pool.available
        self.pool.forget(keys)
        assert self.pool.available == before
        for key in keys:
            self.registered.pop(key, None)

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check(self.tables)
            held = {block for table in self.tables for block in table}
            assert self.pool.available == self.pool.num_blocks - len(held)

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for table in self.tables:
                self.pool.release(table)
            assert self.pool.available == self.pool.num_blocks


def test_pool_machine() -> None:
    run_state_machine_as_test(PoolMachine, settings=settings(stateful_step_count=40))
