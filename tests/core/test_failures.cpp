// Calls that cannot succeed: all ranks get the same error, and no rank's memory is read afterwards.

#include "check.h"
#include "world.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <thread>
#include <utility>

using namespace hocket;
using namespace hocket::test;
using namespace std::chrono_literals;

namespace {

/// An all_reduce of `count` int64 in fresh memory, freed at once when the call has failed.
std::optional<Failure> try_all_reduce(
    Rank &rank, const char *algorithm, int num_ranks, std::size_t count,
    const std::function<void(Call &)> &change = [](Call &) {}, Memory memory = Memory::owned) {
    const Fixture &plans = fixture("all_reduce", algorithm, num_ranks);
    const Buffer input(rank.arena, memory, count * 8), output(rank.arena, memory, count * 8);
    fill_input(rank.rank, Dtype::int64, input.data(), count);
    Call call = call_of(plans, rank.rank, Dtype::int64, Op::sum, count, input.data(), output.data());
    change(call);
    return failure_of([&] { rank.communicator().run(call, do_nothing); });
}

/// A reduce of one int64 to rank 2 of three, which needs both others; they need nobody.
Call reduce_to_last(const Rank &rank, const std::int64_t &value, std::int64_t &result) {
    return call_of(fixture("reduce", "direct", 3, 2), rank.rank, Dtype::int64, Op::sum, 1,
                   reinterpret_cast<const std::byte *>(&value), reinterpret_cast<std::byte *>(&result));
}

/// Waits for a flag of another rank.
void await(const std::atomic<bool> &flag, const char *what) {
    for (const auto limit = Clock::now() + patience; !flag.load(); std::this_thread::yield()) {
        CHECK(Clock::now() < limit, "in vain:", what);
    }
}

/// The error of each rank, to compare them afterwards.
using Heard = std::vector<std::optional<Failure>>;

void check_all_alike(const Heard &heard, Cause cause) {
    for (std::size_t rank = 0; rank < heard.size(); ++rank) {
        CHECK(heard[rank], "rank", rank, "noticed nothing");
        const Failure &first = *heard[0], &own = *heard[rank];
        CHECK(own.cause == cause, "rank", rank, "found cause", static_cast<int>(own.cause), own.text);
        CHECK(own.calls == first.calls && own.missing == first.missing && own.rank == first.rank);
        CHECK(own.sequence == first.sequence && own.text == first.text && own.seconds == first.seconds);
        CHECK(own.self == static_cast<int>(rank), own.self);
    }
}

} // namespace

// Mismatches ----------------------------------------------------------------------------------------------------------

TEST(mismatch_of_each_field_is_found_by_all) {
    const std::pair<const char *, void (*)(Call &)> changes[] = {
        {"count",
         [](Call &call) {
             --call.fingerprint.count;
             --call.launch.block;
         }},
        {"kind", [](Call &call) { ++call.fingerprint.kind; }},
        {"dtype",
         [](Call &call) {
             call.fingerprint.dtype = static_cast<std::int32_t>(Dtype::float64);
             call.launch.dtype = Dtype::float64;
         }},
        {"op",
         [](Call &call) {
             call.fingerprint.op = static_cast<std::int32_t>(Op::max);
             call.launch.op = Op::max;
         }},
        {"root", [](Call &call) { ++call.fingerprint.root; }},
        {"schedule", [](Call &call) { ++call.fingerprint.schedule; }},
        {"detail", [](Call &call) { ++call.fingerprint.detail; }},
    };
    for (const auto &[field, change] : changes) {
        for (std::size_t count : {std::size_t{2}, std::size_t{50'000}}) {
            World world(4);
            Heard heard(4);
            world.run([&, change = change](Rank &rank) {
                const auto differs = [&](Call &call) {
                    if (rank.rank == 2) change(call);
                };
                CHECK(!try_all_reduce(rank, "direct", 4, 100), "the first call is alike");
                world.meet(); // a failure also ends earlier calls that still run
                heard[static_cast<std::size_t>(rank.rank)] = try_all_reduce(rank, "ring", 4, count, differs);
            });
            check_all_alike(heard, Cause::mismatch);
            CHECK(heard[0]->sequence == 2, field);
            const auto &calls = heard[0]->calls;
            CHECK(calls.contains(2), field);
            CHECK(std::ranges::any_of(calls, [&](const auto &one) { return one.second != calls.at(2); }), field);
        }
    }
}

TEST(fingerprints_differ_by_each_field_and_by_where_a_value_stands) {
    std::set<std::uint64_t> digests;
    std::set<std::uint32_t> tags;
    std::size_t num_fingerprints = 0;
    const auto take = [&](const Fingerprint &one) {
        digests.insert(one.digest());
        tags.insert(Fingerprint::tag(one.digest(), 3));
        ++num_fingerprints;
    };
    using Change = void (*)(Fingerprint &, int);
    constexpr Change changes[] = {
        [](Fingerprint &one, int value) { one.sequence = static_cast<std::uint64_t>(value); },
        [](Fingerprint &one, int value) { one.count = static_cast<std::uint64_t>(value); },
        [](Fingerprint &one, int value) { one.schedule = static_cast<std::uint64_t>(value); },
        [](Fingerprint &one, int value) { one.detail = static_cast<std::uint64_t>(value); },
        [](Fingerprint &one, int value) { one.kind = value; },
        [](Fingerprint &one, int value) { one.dtype = value; },
        [](Fingerprint &one, int value) { one.op = value; },
        [](Fingerprint &one, int value) { one.root = value; },
    };
    constexpr Fingerprint some{.sequence = 5, .count = 100};
    take(some);
    for (std::size_t i = 0; i < std::size(changes); ++i) {
        for (int value : {-1, 1, 2, 3, 1000}) {
            Fingerprint one = some;
            changes[i](one, value);
            take(one);
            for (std::size_t j = 0; j < i; ++j) { // the same two values in either order
                for (const auto &[first, second] : {std::pair(value, 7), std::pair(7, value)}) {
                    Fingerprint both = some;
                    changes[i](both, first);
                    changes[j](both, second);
                    take(both);
                }
            }
        }
    }
    CHECK(digests.size() == num_fingerprints && tags.size() == num_fingerprints, digests.size(), tags.size());
}

TEST(mismatch_of_calls_that_had_returned_is_found_at_close) {
    // Each rank takes itself for the root, sends, and may return.
    World world(2);
    Heard heard(2);
    world.run([&heard](Rank &rank) {
        const Fixture &broadcast = fixture("broadcast", "binomial", 2, rank.rank);
        std::int64_t value = 5, result = 0;
        const Call call = call_of(broadcast, rank.rank, Dtype::int64, Op::sum, 1,
                                  reinterpret_cast<const std::byte *>(&value), reinterpret_cast<std::byte *>(&result));
        heard[static_cast<std::size_t>(rank.rank)] = failure_of([&] {
            rank.communicator().run(call, do_nothing);
            rank.communicator().close(do_nothing);
        });
    });
    check_all_alike(heard, Cause::mismatch);
    CHECK(heard[0]->calls.at(0).root == 0 && heard[0]->calls.at(1).root == 1);
}

TEST(mismatch_is_found_however_far_a_root_is_ahead) {
    // As many calls as the channel holds messages; the next one waits.
    World world(2);
    Heard heard(2);
    world.run([&](Rank &rank) {
        const Fixture &broadcast = fixture("broadcast", "binomial", 2);
        std::int64_t value = 5, result = 0;
        Call call = call_of(broadcast, rank.rank, Dtype::int64, Op::sum, 1, reinterpret_cast<const std::byte *>(&value),
                            reinterpret_cast<std::byte *>(&result));
        for (std::size_t i = 0; rank.rank == 0 && i < largest_ring; ++i) { rank.communicator().run(call, do_nothing); }
        world.meet();
        if (rank.rank == 1) ++call.fingerprint.kind;
        heard[static_cast<std::size_t>(rank.rank)] = failure_of([&] {
            rank.communicator().run(call, do_nothing);
            rank.communicator().close(do_nothing);
        });
        CHECK(rank.rank == 0 || result == 0, "nothing of another call was stored");
    });
    check_all_alike(heard, Cause::mismatch);
    CHECK(heard[0]->sequence == 1 && heard[0]->calls.at(0).kind != heard[0]->calls.at(1).kind);
}

TEST(mismatch_on_the_stream_fails_all_that_follows) {
    World world(3);
    world.run([&world](Rank &rank) {
        const Fixture &plans = fixture("all_reduce", "ring", 3);
        const Buffer input(rank.arena, Memory::owned, 800), output(rank.arena, Memory::owned, 3 * 800);
        std::vector<std::shared_ptr<Work>> works;
        for (int i = 0; i < 3; ++i) {
            Call call = call_of(plans, rank.rank, Dtype::int64, Op::sum, 100, input.data(), output.data() + 800 * i);
            if (rank.rank == 1 && i == 1) ++call.fingerprint.op;
            works.push_back(rank.communicator().submit(call));
            if (i > 0) continue;
            CHECK(works[0]->end().wait(patience) && !works[0]->end().failure());
            world.meet();
        }
        for (const auto &work : works) CHECK(work->end().wait(patience));
        CHECK(failure_of(*works[1])->cause == Cause::mismatch && failure_of(*works[2])->cause == Cause::mismatch);
        CHECK(failure_of(*works[2])->sequence == 2, "the reason stays the first one");
    });
}

// Waits that end ------------------------------------------------------------------------------------------------------

TEST(timeout_names_the_rank_that_never_came) {
    // In a ring, most ranks wait for a rank that has arrived and waits itself.
    for (const char *algorithm : {"ring", "direct", "halving_doubling"}) {
        for (bool spin : {false, true}) {
            World world(5, {.spin = spin});
            Heard heard(5);
            world.run([&](Rank &rank) {
                CHECK(!try_all_reduce(rank, "direct", 5, 10));
                if (rank.rank == 3) return;
                heard[static_cast<std::size_t>(rank.rank)] =
                    try_all_reduce(rank, algorithm, 5, 40'000, [](Call &call) { call.timeout = 400ms; });
            });
            heard[3] = failure_of([&] { world[3].communicator().close(do_nothing); });
            check_all_alike(heard, Cause::timeout);
            CHECK(heard[0]->missing == std::vector<int>{3}, algorithm, "names", heard[0]->missing.size(), "ranks");
            CHECK(heard[0]->seconds == 0.4 && heard[0]->sequence == 2);
        }
    }
}

TEST(abort_ends_the_waits_of_all) {
    World world(4);
    Heard heard(4);
    world.run([&](Rank &rank) {
        auto &own = heard[static_cast<std::size_t>(rank.rank)];
        world.meet();
        if (rank.rank == 1) rank.communicator().abort("out of coffee");
        own = try_all_reduce(rank, "ring", 4, 10);
    });
    check_all_alike(heard, Cause::aborted);
    CHECK(heard[0]->rank == 1 && heard[0]->text == "out of coffee");
}

TEST(abort_by_another_thread_of_a_waiting_rank) {
    World world(2);
    std::optional<Failure> heard;
    std::atomic<bool> asked{false};
    std::thread other([&] {
        while (!asked.load()) std::this_thread::yield();
        world[0].communicator().abort("asked to");
    });
    asked.store(true);
    heard = try_all_reduce(world[0], "ring", 2, 10);
    other.join();
    CHECK(heard && heard->cause == Cause::aborted && heard->rank == 0 && heard->text == "asked to");
}

TEST(abort_after_the_failure_of_a_later_call_ends_the_waits_of_all) {
    // Rank 1 has failed in the second call when rank 0 gives up before the first. In the first call, rank 2 waits for
    // rank 0, and rank 0's stream waits for an earlier action.
    World world(3);
    Heard heard(3);
    std::atomic<bool> failed{false}, ended{false};
    const auto before = std::make_shared<Mark>();
    world.run([&](Rank &rank) {
        auto &own = heard[static_cast<std::size_t>(rank.rank)];
        const std::int64_t value = 5;
        std::int64_t result = 0;
        const Call call = reduce_to_last(rank, value, result);
        if (rank.rank == 0) {
            const auto work = rank.communicator().submit(call, before);
            await(failed, "the second call has failed");
            rank.communicator().abort("asked to");
            const bool has_ended = work->end().wait(patience);
            before->pass();
            CHECK(has_ended);
            own = failure_of(*work);
            await(ended, "the first call has ended");
        } else if (rank.rank == 1) {
            rank.communicator().run(call, do_nothing);
            own = try_all_reduce(rank, "direct", 3, 1, [](Call &second) { second.timeout = 100ms; });
            failed.store(true);
        } else {
            own = failure_of([&] { rank.communicator().run(call, do_nothing); });
            ended.store(true);
        }
    });
    check_all_alike(heard, Cause::timeout);
    CHECK(heard[0]->sequence == 2 && heard[0]->rank == 1, "the reason stays the first one");
}

TEST(interruption_ends_a_call_and_tells_the_others) {
    struct Interrupt final : std::runtime_error {
        using std::runtime_error::runtime_error;
    };
    World world(3);
    Heard heard(3);
    world.run([&heard](Rank &rank) {
        if (rank.rank == 2) return;
        if (rank.rank == 1) {
            heard[1] = try_all_reduce(rank, "ring", 3, 1);
            return;
        }
        const Fixture &plans = fixture("all_reduce", "ring", 3);
        std::int64_t memory[2] = {};
        const Call call = call_of(plans, 0, Dtype::int64, Op::sum, 1, reinterpret_cast<std::byte *>(memory),
                                  reinterpret_cast<std::byte *>(memory + 1));
        bool interrupted = false;
        try {
            rank.communicator().run(call, [] { throw Interrupt("control-C"); });
        } catch (const Interrupt &) { interrupted = true; }
        CHECK(interrupted);
        heard[0] = failure_of([&] { rank.communicator().run(call, do_nothing); });
    });
    heard[2] = failure_of([&] { world[2].communicator().close(do_nothing); });
    check_all_alike(heard, Cause::aborted);
    CHECK(heard[0]->rank == 0 && heard[0]->text == "interrupted");
}

TEST(closing_ends_the_waits_for_that_rank) {
    World world(3);
    Heard heard(3);
    world.run([&](Rank &rank) {
        world.meet();
        if (rank.rank == 2) {
            CHECK(!failure_of([&] { rank.communicator().close(do_nothing); }));
            return;
        }
        heard[static_cast<std::size_t>(rank.rank)] = try_all_reduce(rank, "direct", 3, 5000);
    });
    for (int rank : {0, 1}) {
        const auto &own = heard[static_cast<std::size_t>(rank)];
        CHECK(own && own->cause == Cause::aborted && own->rank == 2, "rank", rank);
        CHECK(!own->missing.empty(), own->text);
    }
}

TEST(a_call_without_memory_fails_and_tells_the_others) {
    // One rank assumes a block larger than any machine's memory, so there is no scratch for it.
    for (bool on_stream : {false, true}) {
        World world(3);
        Heard heard(3);
        world.run([&heard, on_stream](Rank &rank) {
            const Fixture &plans = fixture("reduce_scatter", "ring", 3);
            std::int64_t memory[4] = {};
            Call call = call_of(plans, rank.rank, Dtype::int64, Op::sum, 1, reinterpret_cast<std::byte *>(memory),
                                reinterpret_cast<std::byte *>(memory + 3));
            if (rank.rank == 1) call.launch.block = std::size_t{1} << 60;
            auto &own = heard[static_cast<std::size_t>(rank.rank)];
            if (on_stream) {
                const auto work = rank.communicator().submit(call);
                CHECK(work->end().wait(patience));
                own = failure_of(*work);
            } else {
                own = failure_of([&] { rank.communicator().run(call, do_nothing); });
            }
        });
        CHECK(heard[1] && heard[1]->cause == Cause::resource && heard[1]->error_number == ENOMEM);
        for (int rank : {0, 2}) {
            const auto &own = heard[static_cast<std::size_t>(rank)];
            CHECK(own && own->cause == Cause::aborted && own->rank == 1, "rank", rank);
            CHECK(own->text.find("scratch") != std::string::npos, own->text);
        }
    }
}

TEST(a_reduction_that_throws_ends_the_call_on_all_ranks) {
    // One rank's own op fails at its second fold; a user's own reduction may do so at any time.
    for (bool on_stream : {false, true}) {
        for (const char *algorithm : {"ring", "direct"}) {
            World world(3);
            Heard heard(3);
            world.run([&](Rank &rank) {
                constexpr std::size_t count = 100'000;
                const Fixture &plans = fixture("all_reduce", algorithm, 3);
                const Buffer input(rank.arena, Memory::owned, count * 8), output(rank.arena, Memory::owned, count * 8);
                fill_input(rank.rank, Dtype::int64, input.data(), count);
                int num_folds = 0;
                const CustomFold custom = [&](std::byte *destination, std::span<const std::byte *const> sources,
                                              std::size_t num_elements) {
                    if (rank.rank == 1 && ++num_folds == 2) {
                        Failure failure;
                        failure.cause = Cause::aborted;
                        failure.text = "its op raised Surprise: no";
                        throw failure;
                    }
                    fold({.dtype = Dtype::int64, .op = Op::sum}, destination, sources, {}, num_elements);
                };
                Call call = call_of(plans, rank.rank, Dtype::int64, Op::custom, count, input.data(), output.data());
                call.launch.custom = &custom;
                auto &own = heard[static_cast<std::size_t>(rank.rank)];
                if (on_stream) {
                    const auto work = rank.communicator().submit(call);
                    CHECK(work->end().wait(patience));
                    own = failure_of(*work);
                } else {
                    own = failure_of([&] { rank.communicator().run(call, do_nothing); });
                }
            });
            check_all_alike(heard, Cause::aborted);
            CHECK(heard[0]->rank == 1 && heard[0]->text == "its op raised Surprise: no", heard[0]->text);
        }
    }
}

// Memory that was lent ------------------------------------------------------------------------------------------------

TEST(a_failed_call_waits_for_nobody_in_an_earlier_one) {
    // Rank 2 stays in the first call until rank 0 makes it, after rank 1 has failed in the second. Rank 1's message
    // there is in a line, staged or lent. If rank 2 closes instead of making the second call, close() raises the error.
    const std::pair<std::size_t, bool> cases[] = {{1, false}, {100, false}, {50'000, false}, {100, true}};
    for (const auto &[count, closes] : cases) {
        World world(3);
        Heard heard(3);
        std::atomic<bool> failed{false};
        world.run([&](Rank &rank) {
            auto &own = heard[static_cast<std::size_t>(rank.rank)];
            if (rank.rank == 0) await(failed, "the second call has failed");
            const std::int64_t value = 5;
            std::int64_t result = 0;
            rank.communicator().run(reduce_to_last(rank, value, result), do_nothing);
            CHECK(rank.rank != 2 || result == 15, "a later call's failure does no harm", result);
            if (closes && rank.rank == 2) {
                try {
                    rank.communicator().close(do_nothing);
                } catch (const Failure &failure) { own = failure; }
                return;
            }
            own = try_all_reduce(rank, "direct", 3, count, [&rank](Call &call) {
                if (rank.rank == 1) call.timeout = 100ms;
            });
            if (rank.rank != 1) return;
            rank.communicator().abort("as it leaves, with this failure"); // changes nothing
            failed.store(true);
        });
        check_all_alike(heard, Cause::timeout);
        CHECK(heard[0]->missing == (std::vector<int>{0, 2}) && heard[0]->sequence == 2);
    }
}

TEST(a_failed_call_leaves_no_reader_behind) {
    // One rank gives up at any moment of a long call, and all ranks free memory that others may be folding.
    constexpr int rounds = thread_sanitizer ? 30 : 60;
    for (int round = 0; round < rounds; ++round) {
        const Memory memory = round % 2 == 0 ? Memory::owned : Memory::registered;
        const char *algorithm = round % 4 < 2 ? "direct" : "ring";
        World world(3);
        std::atomic<int> started{0};
        std::thread killer([&world, &started, round] {
            while (started.load() < 3) std::this_thread::yield();
            for (int i = 0; i < round * 3; ++i) std::this_thread::yield();
            world[round % 3].communicator().abort("any moment");
        });
        std::exception_ptr error;
        try {
            world.run([&](Rank &rank) {
                started.fetch_add(1);
                for (;;) {
                    const auto failure = try_all_reduce(rank, algorithm, 3, 200'000, [](Call &) {}, memory);
                    if (!failure) continue;
                    CHECK(failure->cause == Cause::aborted && failure->text == "any moment", failure->text);
                    return;
                }
            });
        } catch (...) { error = std::current_exception(); }
        killer.join();
        if (error) std::rethrow_exception(error);
    }
}
