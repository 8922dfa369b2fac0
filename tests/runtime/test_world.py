"""Random legal schedules through the native executor, in seeded random orders, on both transports."""

import pytest

from hocket.errors import InternalError
from hocket.runtime import world
from hocket.schedule import premul_sum, reference
from hocket.testing import assert_same_bits
from tests.schedule.random_schedules import random_inputs, random_lengths, random_schedule

SEEDS = 300


@pytest.mark.parametrize("part", range(4))
def test_the_executor_computes_what_random_schedules_mean(part: int) -> None:
    for seed in range(part, SEEDS, 4):
        schedule = random_schedule(seed)
        block = (0, 1, 7, 40_000)[seed // 4 % 4]
        op = "max" if schedule.collective == "barrier" else premul_sum(1.5) if seed % 2 else "sum"
        for in_place in (False, True):
            lengths = random_lengths(schedule, block, seed, in_place=in_place)
            inputs = random_inputs(schedule, block, seed, lengths)
            expected = reference.run(schedule, inputs, op, block_lengths=lengths)
            cores = world.shared_memory(schedule.num_ranks, 1 << 26)
            for transports in (world.byte_streams(schedule.num_ranks), [core.transport for core in cores]):
                if block > 7 and transports[0].__class__.__name__ == "ByteStreamTransport":
                    continue
                try:
                    found = world.run_world(
                        schedule,
                        inputs,
                        op,
                        transports=transports,
                        in_place=in_place,
                        seed=seed,
                        block_lengths=lengths,
                    )
                except InternalError as error:
                    raise AssertionError(f"schedule {seed}, in_place={in_place}, {transports[0]}") from error
                assert_same_bits(found, expected)
