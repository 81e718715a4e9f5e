"""What goes wrong at a moment of its own. Faults that strike with a step are in world.py."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from scheduler_svc.core import KvIndex
from scheduler_svc.core.policies import Policy
from scheduler_svc.core.types import PolicyFault
from svc_wire.ids import FinishReason
from tests.sim import policies
from tests.sim.executor import SimExecutor
from tests.sim.knobs import KILLS, Fault, draw_capacity
from tests.sim.policies import Crazy

if TYPE_CHECKING:
    from tests.sim.world import World


def schedule(world: World) -> None:
    """Draws when each kind of trouble that is on happens in this world."""
    for fault, (event, times_max) in KINDS.items():
        if fault in world.knobs.faults:
            times = world.rng.randint(1, times_max)
            for _ in range(world.knobs.kills or times if fault in KILLS else times):
                world.at(world.rng.randrange(world.knobs.trouble_ticks + 20), partial(event, world))


def abort(world: World) -> None:
    """A client goes away, or is late, or says so twice, or after its end."""
    if not world.ledger.entries:
        return
    seq_id = world.rng.choice(world.ledger.live or list(world.ledger.entries))
    for _ in range(world.rng.randint(1, 2)):
        reason = world.rng.choice([FinishReason.ABORT, FinishReason.DEADLINE])
        was_live = world.ledger.entries[seq_id].ending is None
        ending = world.core.abort(seq_id, reason)
        assert (ending is not None) == was_live, "an abort ends what lives, and only that"
        if ending:
            assert ending.reason is reason
            world.say(f"abort seq {seq_id}")
            world.ledger.take_ending(ending)


def die(world: World) -> None:
    """The executor's process goes, a step half done; its successor finds other sizes."""
    world.executor.is_dead = True
    world.kills += 1
    if world.core.epoch is not None:
        world.lose("died")
    capacity = world.capacity
    if world.rng.random() < 0.5:
        # Not another vocabulary: with it, other answers would be right.
        capacity = msgspec.structs.replace(draw_capacity(world.rng), vocab_size=capacity.vocab_size)
    world.reattach_later(SimExecutor(capacity))


def deliver_ghost(world: World) -> None:
    """A result of the past comes again; it must not leave a trace."""
    awaited = [(planned.epoch, planned.step) for planned in world.published]
    past = [ghost for ghost in world.ghosts if (ghost.epoch, ghost.step) not in awaited]
    if past:
        ghost, before = world.rng.choice(past), world.core.stats()
        output = world.core.commit(ghost)
        assert not len(output.tokens), "tokens of a ghost"
        assert not output.endings, "a ghost ended somebody"
        assert world.core.stats() == before
        world.say(f"ghost of step {ghost.epoch}.{ghost.step}")


def poison(world: World) -> None:
    """From now on the executor fails whenever it computes this request."""
    if world.ledger.live:
        seq_id = world.rng.choice(world.ledger.live)
        world.poison = world.ledger.entries[seq_id]
        world.say(f"poison seq {seq_id}")


def restart(world: World) -> None:
    """The scheduler's process dies, or leaves as ordered when its steps have ended."""
    world.kills += 1
    if world.rng.random() < 0.5:
        world.is_leaving = True
    else:
        world.say("restart of the scheduler")
        _replace(world, has_executor=world.core.epoch is not None, kv=None)


def leave(world: World) -> None:
    """The scheduler's last step has ended, or it has lost its executor: its successor comes."""
    world.is_leaving = False
    has_executor = world.core.epoch is not None
    kv = world.core.hand_over() if has_executor else None
    world.say(f"handover of {len(kv or ())} blocks")
    _replace(world, has_executor=has_executor, kv=kv)


def _replace(world: World, *, has_executor: bool, kv: KvIndex | None) -> None:
    """Front ends resume as soon as the new scheduler has an executor."""
    world.orphans += world.ledger.forget_scheduler()
    world.published.clear()
    world.core = world.new_core()
    if has_executor:
        world.attach(world.executor, kv)


def draw_policy(world: World) -> Policy:
    if Fault.CRAZY in world.knobs.faults:
        return Crazy(world.rng, world.rng.choice([0.0, 0.01, 0.1]))
    return policies.draw_policy(world.rng)


def swap(world: World) -> None:
    """An operator puts another policy in force, while everything runs."""
    policy = draw_policy(world)
    world.swaps += 1
    try:
        world.core.set_policy(policy)
    except PolicyFault:
        assert isinstance(policy, Crazy)
        assert policy.is_wrong, "a sound policy was refused"
    else:
        world.policy = policy
        world.say(f"policy {policy.name}")


KINDS = {
    Fault.ABORT: (abort, 5),
    Fault.DEATH: (die, 3),
    Fault.GHOST: (deliver_ghost, 9),
    Fault.POISON: (poison, 1),
    Fault.RESTART: (restart, 2),
    Fault.SWAP: (swap, 3),
}
"""What happens, and how often at most."""
