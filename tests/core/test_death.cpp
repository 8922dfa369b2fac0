// Ranks as processes; some are killed.

#include "check.h"
#include "processes.h"

#include <algorithm>
#include <sched.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace hocket;
using namespace hocket::test;
using namespace std::chrono_literals;

namespace {

Failure all_reduce_until_failure(Rank &rank, const char *algorithm, int num_ranks, std::size_t count) {
    const Fixture &plans = fixture("all_reduce", algorithm, num_ranks);
    const Buffer input(rank.arena, Memory::owned, count * 8), output(rank.arena, Memory::registered, count * 8);
    for (;;) {
        auto failure = failure_of([&] {
            rank.communicator().run(
                call_of(plans, rank.rank, Dtype::int64, Op::sum, count, input.data(), output.data()), do_nothing);
        });
        if (failure) return *failure;
    }
}

/// A survivor: makes calls until it is told of a death, in time.
void survive(Rank &rank, Board &board, const char *algorithm, int num_ranks, std::size_t count) {
    const Failure failure = all_reduce_until_failure(rank, algorithm, num_ranks, count);
    const std::int64_t noticed = now();
    CHECK(failure.cause == Cause::died, "cause", static_cast<int>(failure.cause), failure.text);
    const auto victim = static_cast<std::size_t>(failure.rank);
    const std::int64_t killed_at = board.killed_at[victim].load();
    CHECK(killed_at != 0, "names rank", failure.rank, "which lives");
    CHECK(noticed - killed_at < 1'000'000'000, "noticed after ns:", noticed - killed_at);
    board.reported[static_cast<std::size_t>(rank.rank)].store(failure.rank + 1);
    rank.communicator().close(do_nothing);
}

} // namespace

TEST(fixtures_among_processes) {
    for (int num_ranks : {2, 5}) {
        const Processes run(num_ranks,
                            [num_ranks](Rank &rank, Board &) {
                                std::size_t number = 0;
                                for (const Fixture &one : fixtures()) {
                                    if (one.num_ranks != num_ranks) continue;
                                    for (const Case &run : one.cases) {
                                        const auto bits = number++ + static_cast<std::size_t>(rank.rank);
                                        const Operands operands(one, run, rank,
                                                                bits % 2 == 0 ? Memory::owned : Memory::registered,
                                                                bits % 4 < 2 ? Memory::owned : Memory::registered);
                                        rank.communicator().run(operands.call(), do_nothing);
                                        operands.check("processes");
                                    }
                                }
                                rank.communicator().close(do_nothing);
                            },
                            {.spin = num_ranks == 2});
    }
}

TEST(death_inside_a_call_is_named_by_all_survivors) {
    const char *algorithms[] = {"ring", "direct", "halving_doubling", "direct_two_shot"};
    int round = 0;
    for (int num_ranks : {2, 3, 5, 8}) {
        for (int i = 0; i < 8; ++i, ++round) {
            const int victim = round % num_ranks;
            const char *algorithm = algorithms[round / 2 % 4];
            const std::size_t count = i % 2 == 0 ? 100'000 : 20;
            const Processes run(num_ranks,
                                [=](Rank &rank, Board &board) {
                                    if (rank.rank != victim) return survive(rank, board, algorithm, num_ranks, count);
                                    std::thread killer([&rank, &board, i] {
                                        for (int turn = 0; turn < i * 40; ++turn) sched_yield();
                                        die(rank, board);
                                    });
                                    all_reduce_until_failure(rank, algorithm, num_ranks, count);
                                    killer.join();
                                },
                                {.spin = num_ranks == 2});
        }
    }
}

TEST(death_before_the_first_call) {
    const Processes run(4, [](Rank &rank, Board &board) {
        if (rank.rank == 2) die(rank, board);
        survive(rank, board, "ring", 4, 10);
    });
}

TEST(deaths_of_neighbours_are_all_found) {
    // Rank 0 watches 1, and 1 watches 2: when both die, another rank must take over. All name the same one.
    for (int round = 0; round < 8; ++round) {
        Processes run(5, [round](Rank &rank, Board &board) {
            if (rank.rank == 1 || rank.rank == 2) {
                if (rank.rank == round % 2 + 1) {
                    while (!rank.context->at(2 - round % 2).presence->is_dead() && round % 4 < 2) sched_yield();
                }
                die(rank, board);
            }
            survive(rank, board, "direct", 5, 1000);
            while (!rank.context->at(1).presence->is_dead() || !rank.context->at(2).presence->is_dead())
                sched_yield(); // ended by alarm()
        });
        for (std::size_t rank : {3U, 4U}) CHECK(run.board().reported[rank].load() == run.board().reported[0].load());
    }
}

TEST(endpoints_of_a_communicator_with_a_dead_member_are_used_again) {
    const Processes run(3, [](Rank &rank, Board &board) {
        Communicator &communicator = rank.communicator();
        if (rank.rank == 1) die(rank, board);
        survive(rank, board, "ring", 3, 1000);
        const auto add = [&](int num_members) {
            return rank.context->add_endpoint(Endpoint::committed_bytes(num_members),
                                              Endpoint::reserved_bytes(num_members));
        };
        board.endpoint[static_cast<std::size_t>(rank.rank)].store(add(2));
        board.num_done.fetch_add(1);
        while (board.num_done.load() < 2) sched_yield(); // both survivors have closed
        CHECK(add(3) == communicator.transport().own_offset());
        const std::size_t offsets[] = {board.endpoint[0].load(), board.endpoint[2].load()};
        Rank member;
        member.rank = rank.rank / 2;
        member.arena = rank.arena;
        member.communicators.push_back(
            std::make_unique<Communicator>(rank.context, std::vector{0, 2}, member.rank, offsets, true));
        const Fixture &plans = fixture("all_reduce", "ring", 2);
        for (const Case &run : plans.cases) {
            const Operands operands(plans, run, member, Memory::owned, Memory::registered);
            member.communicator().run(operands.call(), do_nothing);
            operands.check("after a death");
        }
        member.communicator().close(do_nothing);
    });
}

TEST(a_failure_after_the_first_member_has_gone_is_told_by_all) {
    for (const Cause cause : {Cause::aborted, Cause::timeout, Cause::mismatch}) {
        const Processes run(4, [cause](Rank &rank, Board &board) {
            Communicator &communicator = rank.communicator();
            if (rank.rank == 0) {
                communicator.close(do_nothing);
                die(rank, board);
            }
            while (!rank.context->at(0).presence->is_dead()) sched_yield();
            std::int64_t value = 5;
            const auto message = [&](bool sends, int peer, Dtype dtype = Dtype::int64) {
                return Message{.sends = sends,
                               .peer = peer,
                               .tag = 5,
                               .dtype = dtype,
                               .data = reinterpret_cast<std::byte *>(&value),
                               .num_bytes = sizeof value};
            };
            const auto failure = failure_of([&] {
                if (rank.rank == 1 && cause == Cause::aborted) communicator.abort("out of coffee");
                const bool is_late = rank.rank == 1 && cause == Cause::timeout;
                Message messages[] = {message(false, rank.rank == 1 ? 2 : 1), message(true, 2, Dtype::float64)};
                const std::size_t num_messages = rank.rank == 1 && cause == Cause::mismatch ? 2 : 1;
                communicator.messages().run(std::span(messages).first(num_messages), is_late ? 100ms : patience,
                                            do_nothing);
            });
            CHECK(failure && failure->cause == cause && failure->self == rank.rank, failure ? failure->text : "none");
            CHECK(cause == Cause::mismatch ? failure->calls.contains(2) : failure->rank == 1);
            CHECK(cause != Cause::aborted || failure->text == "out of coffee", failure->text);
            CHECK(cause != Cause::timeout || failure->seconds == 0.1);
            const auto state = [&](int member) { return communicator.transport().control(member).abort.state.load(); };
            CHECK(state(0) == AbortRecord::passed && state(1) == AbortRecord::ready);
            communicator.close(do_nothing);
        });
    }
}

TEST(leaving_after_close_is_no_death) {
    // The root sends from staging, closes and ends at once, without notice to its guard. The others have all they need.
    for (int round = 0; round < 20; ++round) {
        const Processes run(8, [](Rank &rank, Board &) {
            const Fixture &broadcast = fixture("broadcast", "binomial", 8);
            constexpr std::size_t count = 60'000;
            std::vector<std::int64_t> data(count, rank.rank == 0 ? 42 : 0), output(count);
            rank.communicator().run(call_of(broadcast, rank.rank, Dtype::int64, Op::sum, count,
                                            reinterpret_cast<const std::byte *>(data.data()),
                                            reinterpret_cast<std::byte *>(output.data())),
                                    do_nothing);
            rank.communicator().close(do_nothing);
            CHECK(std::ranges::count(output, 42) == count);
            _exit(0);
        });
    }
}

TEST(a_forked_child_is_told_so) {
    if (thread_sanitizer) throw Skipped("ThreadSanitizer refuses threads after a fork");
    World world(2);
    world.run([](Rank &rank) {
        std::int64_t memory[2] = {};
        rank.communicator().run(call_of(fixture("all_reduce", "ring", 2), rank.rank, Dtype::int64, Op::sum, 1,
                                        reinterpret_cast<std::byte *>(memory),
                                        reinterpret_cast<std::byte *>(memory + 1)),
                                do_nothing);
    });
    const pid_t child = fork();
    if (child == 0) {
        std::int64_t memory[2] = {};
        const Call call = call_of(fixture("all_reduce", "ring", 2), 0, Dtype::int64, Op::sum, 1,
                                  reinterpret_cast<std::byte *>(memory), reinterpret_cast<std::byte *>(memory + 1));
        const auto run = failure_of([&] { world[0].communicator().run(call, do_nothing); });
        const auto submit = failure_of([&] { world[0].communicator().submit(call); });
        const auto close = failure_of([&] { world[0].communicator().close(do_nothing); });
        world[0].communicators.clear();
        world[0].context.reset();
        const bool told = run && run->cause == Cause::forked && submit && submit->cause == Cause::forked && !close;
        _exit(told ? 0 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status", status);
    world.run([](Rank &rank) { // the parent is not affected
        CHECK(!failure_of([&] { rank.communicator().close(do_nothing); }));
    });
}
