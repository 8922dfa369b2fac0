// Waiting: how long a wait polls, and that the rank for which a sleeper waits rings it.

#include "check.h"
#include "world.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr int rounds = 40;

/// Waits until a member sleeps; returns the number of its bell at that time.
std::uint32_t await_sleeper(const World &world, const ControlPage &page) {
    while (page.sleeping.load(std::memory_order_seq_cst) == 0) {
        CHECK(!world.has_failed(), "another rank failed");
        std::this_thread::yield();
    }
    return page.bell.load(std::memory_order_seq_cst);
}

/// A member that is not rung wakes up by itself a little later, so only the bell shows a lost wake-up. Members that are
/// awake at that moment need not be rung, which must be rare.
void check_rung(int num_rung, int num_sleepers) {
    CHECK(num_rung > num_sleepers / 2, "only", num_rung, "of", num_sleepers, "sleepers were rung");
}

void await_at_least(const World &world, const std::atomic<int> &number, int least) {
    while (number.load() < least) {
        CHECK(!world.has_failed(), "another rank failed");
        std::this_thread::yield();
    }
}

} // namespace

TEST(a_mutex_lets_one_in_at_a_time_and_wakes_who_sleeps_over_it) {
    Mutex mutex;
    constexpr std::uint64_t num_threads = 4, num_turns = 5000;
    std::uint64_t number = 0, num_refused = 0;
    {
        std::vector<std::jthread> threads;
        for (std::uint64_t i = 0; i < num_threads; ++i) {
            threads.emplace_back([&] {
                for (std::uint64_t turn = 0; turn < num_turns; ++turn) {
                    const std::scoped_lock lock(mutex);
                    const std::uint64_t before = number;
                    if (turn % 8 == 0) std::this_thread::yield(); // so others find it locked, and sleep
                    num_refused += mutex.try_lock() ? 0 : 1;
                    number = before + 1;
                }
            });
        }
    }
    CHECK(number == num_threads * num_turns && num_refused == number, number, num_refused);
    CHECK(mutex.try_lock());
}

TEST(a_spinning_wait_goes_on_for_a_while_and_again_when_something_has_moved) {
    Patience patience(true);
    const Clock::time_point start = Clock::now();
    const auto look_until = [&patience](Clock::time_point now) {
        unsigned rounds_between = 0;
        while (!patience.wants_clock()) ++rounds_between;
        patience.look(now);
        return rounds_between;
    };
    CHECK(look_until(start) == 0);
    CHECK(look_until(start + spin_time / 2) == polls_per_look - 1);
    CHECK(!patience.is_over());
    look_until(start + spin_time);
    CHECK(patience.is_over());
    for (int i = 0; i < 3; ++i) CHECK(look_until(start + spin_time) == 0); // because each round may be long
    CHECK(patience.is_over());
    patience.renew();
    CHECK(!patience.is_over() && look_until(start + spin_time) == 0 && !patience.is_over());
}

TEST(a_yielding_wait_counts_rounds_and_time) {
    constexpr unsigned most_idle = 5 * yields_per_look;
    Patience patience(false, 100, most_idle);
    const Clock::time_point start = Clock::now();
    const auto rounds_until_over = [&patience, start](std::chrono::nanoseconds per_round) {
        patience.renew();
        unsigned num = 0;
        for (; !patience.is_over(); ++num) {
            if (patience.wants_clock()) patience.look(start + num * per_round);
        }
        return num;
    };
    CHECK(rounds_until_over(idle_yield) == 101);
    CHECK(patience.wants_clock() && patience.wants_clock() && patience.is_over());
    // If other programs want the core, the time is over long before the rounds are.
    CHECK(rounds_until_over(yield_time) == yields_per_look + 1);
    // If no other thread runs, it is over soon, and stays over after a sleep between two looks.
    CHECK(rounds_until_over(idle_yield / 2) == most_idle + 1);
    patience.look(start + yield_time / 2);
    CHECK(patience.is_over());
}

TEST(a_late_call_rings_those_that_sleep) {
    const Fixture &plans = fixture("all_reduce", "direct", 2);
    for (bool spin : {false, true}) {
        World world(2, {.spin = spin});
        world.run([&](Rank &rank) {
            int num_rung = 0;
            for (int i = 0; i < rounds; ++i) {
                std::int64_t input = 1, output = 0;
                const ControlPage &other = rank.communicator().transport().control(1 - rank.rank);
                const bool late = i % 2 == rank.rank;
                const std::uint32_t bell = late ? await_sleeper(world, other) : 0;
                rank.communicator().run(call_of(plans, rank.rank, Dtype::int64, Op::sum, 1,
                                                reinterpret_cast<const std::byte *>(&input),
                                                reinterpret_cast<std::byte *>(&output)),
                                        do_nothing);
                CHECK(output == 2);
                if (late && other.bell.load(std::memory_order_seq_cst) != bell) ++num_rung;
            }
            check_rung(num_rung, rounds / 2);
        });
    }
}

TEST(a_late_message_rings_who_sleeps) {
    for (bool spin : {false, true}) {
        for (std::size_t num_bytes : {std::size_t{8}, eager_bytes + 1}) {
            World world(2, {.spin = spin});
            world.run([&](Rank &rank) {
                int num_rung = 0;
                for (int i = 0; i < rounds; ++i) {
                    std::vector<std::byte> data(num_bytes);
                    const ControlPage &other = rank.communicator().transport().control(1 - rank.rank);
                    const bool sends = i % 2 == rank.rank;
                    const std::uint32_t bell = sends ? await_sleeper(world, other) : 0;
                    const Message message{
                        .sends = sends, .peer = 1 - rank.rank, .tag = 5, .data = data.data(), .num_bytes = num_bytes};
                    rank.communicator().messages().run({&message, 1}, patience, do_nothing);
                    if (sends && other.bell.load(std::memory_order_seq_cst) != bell) ++num_rung;
                }
                check_rung(num_rung, rounds / 2);
            });
        }
    }
}

/// Ranks share a core: a receive that finds nothing lets the others run; only then it becomes pending, after it has
/// said once more that it waits. A receive whose message has arrived behind another one does not wait.
TEST(a_receive_lets_others_run_before_it_is_pending) {
    enum class Case { comes_meanwhile, comes_later, behind_another, never };
    for (const Case what : {Case::comes_meanwhile, Case::comes_later, Case::behind_another, Case::never}) {
        World world(2);
        std::atomic<int> num_waits{0}, num_acts{0};
        world.run([&](Rank &rank) {
            PointToPoint &messages = rank.communicator().messages();
            std::int64_t value = 0, other = 7;
            const auto message_of = [&](bool sends, std::uint64_t tag, std::int64_t &memory) {
                return Message{.sends = sends,
                               .peer = 1 - rank.rank,
                               .tag = tag,
                               .data = reinterpret_cast<std::byte *>(&memory),
                               .num_bytes = sizeof memory};
            };
            const auto run = [&](const Message &message, const Hook &before_wait) {
                Operation operation(message, patience);
                messages.run(std::span(&operation, 1), do_nothing, before_wait);
            };
            const auto send = [&](std::uint64_t tag, std::int64_t number) {
                run(message_of(true, tag, number), [] {});
            };
            if (rank.rank == 0) {
                if (what == Case::behind_another) {
                    send(2, other);
                    send(1, 5);
                }
                num_acts.fetch_add(1);
                if (what == Case::behind_another) return;
                await_at_least(world, num_waits, what == Case::comes_later ? 2 : 1);
                if (what == Case::never) rank.communicator().abort("in its turn");
                else send(1, 5);
                num_acts.fetch_add(1);
                return;
            }
            await_at_least(world, num_acts, 1);
            const auto failure = failure_of([&] {
                run(message_of(false, 1, value), [&] {
                    const int num = num_waits.fetch_add(1) + 1;
                    if (what == Case::comes_meanwhile || what == Case::never || num == 2)
                        await_at_least(world, num_acts, 2);
                });
            });
            CHECK(failure.has_value() == (what == Case::never));
            if (failure) {
                CHECK(failure->cause == Cause::aborted && failure->text == "in its turn", failure->text);
                return;
            }
            CHECK(value == 5);
            CHECK(num_waits.load() == (what == Case::behind_another ? 0
                                       : what == Case::comes_later  ? 2
                                                                    : 1),
                  num_waits.load());
            if (what != Case::behind_another) return;
            run(message_of(false, 2, value), [] {});
            CHECK(value == other);
        });
    }
}

// Its sender learns of it then, and need not announce the message.
TEST(a_receive_of_a_long_message_is_pending_before_others_run) {
    World world(2);
    std::atomic<int> num_waits{0};
    world.run([&](Rank &rank) {
        std::vector<std::byte> data(eager_bytes + 1);
        const bool sends = rank.rank == 0;
        if (sends) await_sleeper(world, rank.communicator().transport().control(1));
        Operation operation(
            {.sends = sends, .peer = 1 - rank.rank, .tag = 1, .data = data.data(), .num_bytes = data.size()}, patience);
        rank.communicator().messages().run(std::span(&operation, 1), do_nothing, [&] {
            if (!sends) num_waits.fetch_add(1);
        });
    });
    CHECK(num_waits.load() == 1, "it says that it waits once it is pending, and only then", num_waits.load());
}
