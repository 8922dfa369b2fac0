// The executor in one thread, step by step: what may run when, and what it waits for.

#include "check.h"
#include "executor/executor.h"
#include "fixtures.h"
#include "transport/byte_stream.h"
#include "world.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <vector>

using namespace hocket;
using namespace hocket::test;

namespace {

using Row = std::vector<std::int32_t>;

/// The executors of all ranks of one fixture, over byte streams, on int64.
struct Machines {
    Machines(const Fixture &fixture, std::size_t block, std::size_t all_caches = 1 << 20)
        : streams(std::make_shared<ByteStreams>(fixture.num_ranks)), inputs(fixture.plans.size()), outputs(inputs) {
        for (int rank = 0; rank < fixture.num_ranks; ++rank) {
            const auto at = static_cast<std::size_t>(rank);
            inputs[at].assign(block + 1, rank + 1);
            outputs[at].assign(block + 1, 0);
            transports.push_back(std::make_unique<ByteStreamTransport>(streams, rank));
            executors.push_back(
                std::make_unique<Executor>(*fixture.plans[at], *transports.back(), Profile{.all_caches = all_caches}));
            executors.back()->start({.dtype = Dtype::int64,
                                     .op = Op::sum,
                                     .block = block,
                                     .input = reinterpret_cast<const std::byte *>(inputs[at].data()),
                                     .output = reinterpret_cast<std::byte *>(outputs[at].data()),
                                     .tag = 1});
        }
    }

    std::shared_ptr<ByteStreams> streams;
    std::vector<std::vector<std::int64_t>> inputs, outputs;
    std::vector<std::unique_ptr<ByteStreamTransport>> transports;
    std::vector<std::unique_ptr<Executor>> executors;
};

} // namespace

TEST(executor_runs_in_any_order_of_ranks) {
    for (const Fixture &one : fixtures()) {
        if (one.in_place || one.collective != "all_reduce") continue;
        for (unsigned seed = 0; seed < 5; ++seed) {
            Machines machines(one, 5, seed % 2 == 0 ? 1 : 1 << 20); // some copies go past the caches
            std::mt19937 random(seed);
            std::vector<bool> done(machines.executors.size());
            for (std::size_t num_done = 0, turns = 0; num_done < done.size(); ++turns) {
                CHECK(turns < 1'000'000, "no rank gets on:", one.name());
                const std::size_t rank = random() % done.size();
                if (done[rank] || !machines.executors[rank]->advance()) continue;
                done[rank] = true;
                ++num_done;
            }
            for (const auto &output : machines.outputs) {
                for (std::size_t i = 0; i < 5; ++i) CHECK(output[i] == one.num_ranks * (one.num_ranks + 1) / 2);
                CHECK(output[5] == 0);
            }
        }
    }
}

TEST(executor_runs_again_with_what_it_had_and_with_other_memory_and_sizes) {
    struct Run {
        std::size_t block, memory;
    };
    for (const Fixture &one : fixtures()) {
        if (one.in_place || one.collective != "all_reduce") continue;
        Machines machines(one, 0);
        std::vector<std::array<std::array<std::int64_t, 8>, 2>> inputs(machines.executors.size()), outputs(inputs);
        std::uint32_t tag = 1;
        for (const Run &run : {Run{5, 0}, Run{5, 0}, Run{5, 1}, Run{3, 1}, Run{3, 0}, Run{0, 0}, Run{3, 0}}) {
            ++tag;
            for (std::size_t rank = 0; rank < machines.executors.size(); ++rank) {
                inputs[rank][run.memory].fill(static_cast<std::int64_t>(rank + tag));
                outputs[rank][run.memory].fill(0);
                machines.executors[rank]->start(
                    {.dtype = Dtype::int64,
                     .block = run.block,
                     .input = reinterpret_cast<const std::byte *>(inputs[rank][run.memory].data()),
                     .output = reinterpret_cast<std::byte *>(outputs[rank][run.memory].data()),
                     .tag = tag});
            }
            for (bool done = false; !done;) {
                done = true;
                for (const auto &executor : machines.executors) done = executor->advance() && done;
            }
            const std::int64_t p = one.num_ranks, sum = p * (p - 1) / 2 + p * tag;
            for (const auto &output : outputs) {
                for (std::size_t i = 0; i < 8; ++i) CHECK(output[run.memory][i] == (i < run.block ? sum : 0));
            }
        }
    }
}

TEST(executor_names_whom_it_waits_for) {
    Machines machines(fixture("all_reduce", "direct", 4), 1);
    const std::vector<int> all{0, 2, 3};
    CHECK(!machines.executors[1]->advance());
    CHECK(machines.executors[1]->waiting_for() == all);
    const std::vector<int> others{1}, one{3};
    CHECK(machines.executors[1]->waits_for(one) && !machines.executors[1]->waits_for(others));
    CHECK(machines.executors[1]->exchanges_with(all) && !machines.executors[1]->exchanges_with(others));
    CHECK(!machines.executors[2]->advance());
    const auto moves = machines.executors[1]->num_moves();
    CHECK(!machines.executors[1]->advance());
    CHECK(machines.executors[1]->num_moves() > moves);
    const auto still = machines.executors[1]->num_moves();
    CHECK(!machines.executors[1]->advance());
    CHECK(machines.executors[1]->num_moves() == still, "nothing moved, so nothing is counted");
}

TEST(executor_does_what_waits_for_nobody_before_it_waits) {
    World world(2, {.as_processes = true});
    const Fixture &one = fixture("all_gather", "direct", 2);
    std::array<std::array<std::int64_t, 2>, 2> outputs{};
    std::vector<std::unique_ptr<Executor>> executors;
    for (std::size_t rank = 0; rank < 2; ++rank) {
        executors.push_back(std::make_unique<Executor>(*one.plans[rank], world[rank].communicator().transport()));
    }
    for (std::int64_t call = 1; call <= static_cast<std::int64_t>(largest_ring) + 8; ++call) { // more than it holds
        std::array<std::int64_t, 2> inputs{};
        for (std::size_t rank = 0; rank < 2; ++rank) {
            inputs[rank] = 10 * call + static_cast<std::int64_t>(rank);
            executors[rank]->start({.dtype = Dtype::int64,
                                    .block = 1,
                                    .input = reinterpret_cast<const std::byte *>(&inputs[rank]),
                                    .output = reinterpret_cast<std::byte *>(outputs[rank].data()),
                                    .tag = static_cast<std::uint32_t>(call)});
        }
        CHECK(!executors[0]->advance() && outputs[0][0] == inputs[0]);
        if (call % 2 == 0) CHECK(executors[0]->waiting_for() == std::vector<int>{1}); // like a caller that waits long
        CHECK(!executors[0]->advance() && !executors[0]->was_interrupted());
        CHECK(executors[1]->advance() && executors[0]->advance());
        CHECK(outputs[0] == inputs && outputs[1] == inputs, call);
    }
}

TEST(executor_goes_around_what_has_not_come) {
    const Fixture &one = fixture("all_to_all", "direct", 4);
    constexpr std::size_t ranks = 4;
    const std::vector<int> late{1}, others{2, 3};
    for (const std::size_t block : {std::size_t{1}, std::size_t{5000}}) { // in lines, and in five cells of a slot
        for (const bool asks : {false, true}) {
            World world(4, {.as_processes = true});
            std::vector<std::vector<std::int64_t>> inputs, outputs;
            std::vector<std::unique_ptr<Executor>> executors;
            for (std::size_t rank = 0; rank < ranks; ++rank) {
                inputs.emplace_back(ranks * block);
                outputs.emplace_back(ranks * block);
                for (std::size_t i = 0; i < ranks * block; ++i)
                    inputs[rank][i] = static_cast<std::int64_t>(100 * rank + i);
                executors.push_back(
                    std::make_unique<Executor>(*one.plans[rank], world[rank].communicator().transport()));
            }
            const auto has_come = [&](std::size_t rank, std::size_t from, std::size_t begin, std::size_t end) {
                const auto sent = std::span(inputs[from]).subspan(rank * block).subspan(begin, end - begin);
                return std::ranges::equal(sent,
                                          std::span(outputs[rank]).subspan(from * block).subspan(begin, end - begin));
            };
            for (std::uint32_t call = 1; call <= largest_ring + 8; ++call) { // more than a channel holds
                for (std::size_t rank = 0; rank < ranks; ++rank) {
                    std::ranges::fill(outputs[rank], -1);
                    executors[rank]->start({.dtype = Dtype::int64,
                                            .block = block,
                                            .input = reinterpret_cast<const std::byte *>(inputs[rank].data()),
                                            .output = reinterpret_cast<std::byte *>(outputs[rank].data()),
                                            .tag = call});
                }
                CHECK(!executors[3]->advance() && !executors[2]->advance() && !executors[0]->advance());
                CHECK(has_come(0, 2, 0, block) && has_come(0, 3, 0, block) && outputs[0][block] == -1);
                CHECK(executors[0]->waits_for(late) && !executors[0]->waits_for(others));
                if (asks) CHECK(executors[0]->waiting_for() == late); // like a caller that waits long
                const auto moves = executors[0]->num_moves();
                CHECK(!executors[0]->advance() && executors[0]->num_moves() == moves &&
                      !executors[0]->was_interrupted());
                CHECK(executors[1]->advance());
                auto &line = world[1].communicator().transport().endpoint(1).ring(Lane::collectives,
                                                                                  0)[(call - 1) % largest_ring];
                if (block > 1) { // a part of it
                    line.num_cells.store(2);
                    CHECK(!executors[0]->advance());
                    constexpr std::size_t num_there = 2 * cell_bytes / sizeof(std::int64_t);
                    CHECK(has_come(0, 1, 0, num_there) && outputs[0][block + num_there] == -1);
                    CHECK(executors[0]->waits_for(late) && executors[0]->num_moves() > moves);
                    if (asks) CHECK(executors[0]->waiting_for() == late);
                    line.num_cells.store(Endpoint::Line::all_cells);
                }
                for (const std::size_t rank : {0U, 2U, 3U}) CHECK(executors[rank]->advance());
                for (std::size_t rank = 0; rank < ranks; ++rank) {
                    for (std::size_t from = 0; from < ranks; ++from) CHECK(has_come(rank, from, 0, block), call);
                }
            }
        }
    }
}

TEST(executor_folds_in_order_what_is_still_growing) {
    const Fixture &direct = fixture("all_reduce", "direct", 3);
    constexpr std::size_t block = 5000, in_cell = cell_bytes / sizeof(std::int64_t); // five cells
    World world(3, {.as_processes = true});
    std::vector<std::vector<std::int64_t>> inputs(3), outputs(3);
    std::vector<std::unique_ptr<Executor>> executors;
    for (std::size_t rank = 0; rank < 3; ++rank) {
        for (std::size_t i = 0; i < block; ++i) inputs[rank].push_back(static_cast<std::int64_t>(i << (8 * rank)));
        outputs[rank].assign(block, -1);
        executors.push_back(std::make_unique<Executor>(*direct.plans[rank], world[rank].communicator().transport()));
        executors.back()->start({.dtype = Dtype::int64,
                                 .op = Op::sum,
                                 .block = block,
                                 .input = reinterpret_cast<const std::byte *>(inputs[rank].data()),
                                 .output = reinterpret_cast<std::byte *>(outputs[rank].data()),
                                 .tag = 1});
    }
    CHECK(!executors[1]->advance() && !executors[2]->advance());
    const auto shows = [&](int from, std::uint16_t num_cells) {
        auto &line = world[from].communicator().transport().endpoint(from).ring(Lane::collectives, 0)[0];
        line.num_cells.store(num_cells);
    };
    constexpr std::uint16_t all = Endpoint::Line::all_cells;
    struct Step {
        std::uint16_t of_first, of_second;
        std::size_t there;
    };
    for (const Step &step : {Step{2, 3, 2 * in_cell}, Step{4, 3, 3 * in_cell}, Step{all, all, block}}) {
        shows(1, step.of_first);
        shows(2, step.of_second);
        CHECK(executors[0]->advance() == (step.there == block));
        for (std::size_t i = 0; i < block; ++i) {
            CHECK(outputs[0][i] == (i < step.there ? static_cast<std::int64_t>(i + (i << 8) + (i << 16)) : -1), i);
        }
    }
    CHECK(executors[1]->advance() && executors[2]->advance());
}

TEST(executor_runs_in_any_order_of_ranks_over_slots) {
    std::mt19937 random(1);
    std::map<int, World> worlds; // by size
    std::uint32_t call = 0;
    for (const Fixture &one : fixtures()) {
        World &world =
            worlds.try_emplace(one.num_ranks, one.num_ranks, WorldOptions{.as_processes = true}).first->second;
        std::vector<std::unique_ptr<Executor>> executors;
        for (int rank = 0; rank < one.num_ranks; ++rank) {
            executors.push_back(std::make_unique<Executor>(*one.plans[static_cast<std::size_t>(rank)],
                                                           world[rank].communicator().transport()));
        }
        for (const Case &run : one.cases) {
            const Memory memory = ++call % 3 == 0 ? Memory::registered : Memory::owned;
            std::vector<std::unique_ptr<Operands>> operands;
            for (int rank = 0; rank < one.num_ranks; ++rank) {
                operands.push_back(std::make_unique<Operands>(one, run, world[rank], memory, memory));
                executors[static_cast<std::size_t>(rank)]->start(operands.back()->call().launch, call);
            }
            std::vector<bool> done(executors.size());
            for (std::size_t num_done = 0, turns = 0; num_done < done.size(); ++turns) {
                CHECK(turns < 1'000'000, "no rank gets on:", one.name());
                const std::size_t rank = random() % done.size();
                if (done[rank]) continue;
                if (random() % 8 == 0) executors[rank]->waiting_for(); // so some continue in parts
                if (!executors[rank]->advance()) continue;
                done[rank] = true;
                ++num_done;
            }
            for (const auto &each : operands) each->check(one.name().c_str());
        }
    }
}

TEST(executor_refuses_a_message_of_another_call) {
    Machines machines(fixture("all_reduce", "direct", 2), 1);
    CHECK(!machines.executors[0]->advance());
    std::int64_t memory[2] = {};
    machines.executors[1]->start({.dtype = Dtype::int64,
                                  .op = Op::sum,
                                  .block = 1,
                                  .input = reinterpret_cast<const std::byte *>(memory),
                                  .output = reinterpret_cast<std::byte *>(memory + 1),
                                  .tag = 2});
    int guilty = -1;
    try {
        machines.executors[1]->advance();
    } catch (const ForeignMessage &message) { guilty = message.peer; }
    CHECK(guilty == 0, guilty);
    CHECK(memory[1] == 0, "nothing of it was stored");
}

TEST(executor_keeps_long_chunks_apart_when_a_shorter_one_lay_between) {
    // Rank 0 sends three chunks through one slot of scratch, one after the other. With blocks of one element the middle
    // chunk is empty, so the last one does not directly wait until the first has been sent.
    const PlanShape sender{.num_ranks = 3, .rank = 0, .chunks_per_block = 2, .input_blocks = {0, 1}, .num_scratch = 1};
    constexpr std::int32_t input = 0, scratch = 2, remote = 3;
    const Row instructions{0, 1, 1, 1, 0, 0, 1, 1, 2, 2, 1, 0, 2, 0, 3, 3, 2, 0,
                           3, 0, 4, 4, 3, 0, 4, 1, 5, 5, 4, 0, 5, 1, 6, 6, 5, 0};
    const Row sources{-1, input,   1, 0, -1, scratch, 0, 0, -1, input,   0, 0,
                      -1, scratch, 0, 0, -1, input,   3, 0, -1, scratch, 0, 0};
    const Row destinations{-1, scratch, 0, 1, remote, 0, -1, scratch, 0, 2, remote, 0, -1, scratch, 0, 2, remote, 0};
    const Row dependencies{0, 1, 2, 3, 4};
    const Plan plan(sender, "test", instructions, sources, destinations, dependencies);

    PlanShape reader{.num_ranks = 3, .rank = 1, .chunks_per_block = 2, .output_blocks = {0}};
    const Row receive{1, 1, 1, 1, 0, 0}, message{0, remote, 0, 0}, place{-1, 1, 1};
    const Plan first(reader, "test", receive, message, place, {});
    reader.rank = 2;
    const Row receive_later{5, 1, 1, 1, 0, 0};
    const Plan second(reader, "test", receive_later, message, place, {});

    const auto streams = std::make_shared<ByteStreams>(3);
    ByteStreamTransport transports[] = {{streams, 0}, {streams, 1}, {streams, 2}};
    Executor executors[] = {{plan, transports[0]}, {first, transports[1]}, {second, transports[2]}};
    const std::int32_t data[] = {0x01020304, 0x05060708};
    std::int32_t results[3] = {};
    for (int rank = 0; rank < 3; ++rank) {
        executors[rank].start({.dtype = Dtype::int32,
                               .block = 1,
                               .input = reinterpret_cast<const std::byte *>(data),
                               .output = reinterpret_cast<std::byte *>(&results[rank]),
                               .tag = 1});
    }
    CHECK(!executors[0].advance() && !executors[2].advance() && !executors[0].advance()); // rank 1 takes its time
    for (bool done = false; !done;) {
        done = true;
        for (Executor &executor : executors) done = executor.advance() && done;
    }
    CHECK(results[1] == data[0] && results[2] == data[1], std::hex, results[1], results[2]);
}
