// Every built-in algorithm in the core, compared with the reference: all calls of a rank count, back to back on one
// communicator without a barrier, so that rings and slots are used again while slow ranks still read them.

#include "check.h"
#include "transport/byte_stream.h"
#include "world.h"

#include <sched.h>
#include <set>

using namespace hocket;
using namespace hocket::test;

namespace {

std::set<int> rank_counts() {
    std::set<int> counts;
    for (const Fixture &one : fixtures()) counts.insert(one.num_ranks);
    return counts;
}

using MemoryOf = Memory (*)(int rank, std::size_t number, bool output);

/// Each memory layout takes all cases, or two fifths of them if they are many times slower.
constexpr std::size_t num_ways = 5, num_turns = thread_sanitizer ? 2 : num_ways;

void run_all(const char *where, std::size_t way, WorldOptions options, MemoryOf memory_of) {
    for (int num_ranks : rank_counts()) {
        World world(num_ranks, options);
        world.run([where, way, num_ranks, memory_of](Rank &rank) {
            std::size_t number = 0;
            for (const Fixture &one : fixtures()) {
                if (one.num_ranks != num_ranks) continue;
                for (const Case &run : one.cases) {
                    if ((++number + way) % num_ways >= num_turns) continue;
                    const Operands operands(one, run, rank, memory_of(rank.rank, number, false),
                                            memory_of(rank.rank, number, true));
                    rank.communicator().run(operands.call(), do_nothing);
                    operands.check(where);
                }
            }
            rank.communicator().close(do_nothing);
        });
    }
}

Memory private_memory(int, std::size_t, bool) { return Memory::owned; }
Memory registered_memory(int, std::size_t, bool) { return Memory::registered; }
Memory mixed_memory(int rank, std::size_t number, bool output) {
    const auto bits = (static_cast<std::size_t>(rank) * 5 + number) >> (output ? 1 : 0);
    return bits % 2 == 0 ? Memory::owned : Memory::registered;
}

} // namespace

TEST(fixtures_in_private_memory) { run_all("private", 0, {}, private_memory); }
TEST(fixtures_in_registered_memory) { run_all("registered", 1, {}, registered_memory); }
TEST(fixtures_in_mixed_memory) { run_all("mixed", 2, {.spin = true}, mixed_memory); }
TEST(fixtures_in_staged_memory) { run_all("staged", 3, {.as_processes = true}, private_memory); }
TEST(fixtures_in_mixed_memory_of_processes) { run_all("mixed, staged", 4, {.as_processes = true}, mixed_memory); }

TEST(fixtures_of_ranks_that_share_no_cache) {
    run_all("far", 4, {.spin = true, .as_processes = true, .is_far = true}, mixed_memory);
}

TEST(fixtures_on_the_stream) {
    // Several calls run at once, and are checked only at the end.
    for (int num_ranks : {2, 5}) {
        World world(num_ranks);
        world.run([num_ranks](Rank &rank) {
            std::vector<std::pair<std::unique_ptr<Operands>, std::shared_ptr<Work>>> launched;
            const auto look = [&launched] {
                for (auto &[operands, work] : launched) {
                    CHECK(work->end().wait(patience));
                    CHECK(!work->end().failure(), text_of(work->end().failure()));
                    operands->check("on the stream");
                }
                launched.clear();
            };
            for (const Fixture &one : fixtures()) {
                if (one.num_ranks != num_ranks) continue;
                for (const Case &run : one.cases) {
                    auto operands = std::make_unique<Operands>(one, run, rank, Memory::owned, Memory::registered);
                    auto work = rank.communicator().submit(operands->call());
                    launched.emplace_back(std::move(operands), std::move(work));
                    if (launched.size() == 13) look();
                }
            }
            look();
        });
    }
}

TEST(fixtures_over_byte_streams) {
    for (int num_ranks : rank_counts()) {
        const auto streams = std::make_shared<ByteStreams>(num_ranks);
        World world(num_ranks);
        world.run([num_ranks, &streams, &world](Rank &rank) {
            ByteStreamTransport transport(streams, rank.rank);
            std::uint32_t tag = 0;
            for (const Fixture &one : fixtures()) {
                if (one.num_ranks != num_ranks) continue;
                Executor executor(*one.plans[static_cast<std::size_t>(rank.rank)], transport);
                for (const Case &run : one.cases) {
                    if (run.block > 11) continue; // every byte may cost a thread switch
                    const Operands operands(one, run, rank, Memory::owned, Memory::owned);
                    Launch launch = operands.call().launch;
                    launch.tag = ++tag;
                    executor.start(launch);
                    while (!executor.advance()) {
                        CHECK(!world.has_failed(), "another rank failed");
                        sched_yield();
                    }
                    operands.check("byte streams");
                }
            }
        });
    }
}
