// Messages among ranks that are threads: which thread drives, together with calls, and how waits end.

#include "check.h"
#include "world.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

using namespace hocket;
using namespace hocket::test;
using namespace std::chrono_literals;

namespace {

constexpr int num_rounds = thread_sanitizer ? 20 : 40;

Message send_of(const Buffer &buffer, int peer, std::uint64_t tag = 0) {
    return {.sends = true, .peer = peer, .tag = tag, .data = buffer.data(), .num_bytes = buffer.bytes().size()};
}

Message receive_of(const Buffer &buffer, int peer, std::optional<std::uint64_t> tag = 0) {
    return {.peer = peer, .tag = tag, .data = buffer.data(), .num_bytes = buffer.bytes().size()};
}

void fill(const Buffer &buffer, int seed) {
    for (std::size_t i = 0; i < buffer.bytes().size(); ++i) {
        buffer.data()[i] = static_cast<std::byte>((i * 13 + i / 97 + static_cast<std::size_t>(seed) * 29) & 0xff);
    }
}

void check_filled(const Buffer &buffer, int seed) {
    CHECK(buffer.is_intact(), "wrote behind the end");
    for (std::size_t i = 0; i < buffer.bytes().size(); ++i) {
        CHECK(buffer.data()[i] ==
                  static_cast<std::byte>((i * 13 + i / 97 + static_cast<std::size_t>(seed) * 29) & 0xff),
              "byte", i, "of", seed);
    }
}

void run(Rank &rank, std::initializer_list<Message> messages, std::chrono::nanoseconds timeout = patience) {
    rank.communicator().messages().run({messages.begin(), messages.size()}, timeout, do_nothing);
}

std::shared_ptr<Operation> begin(Rank &rank, const Message &message, std::chrono::nanoseconds timeout = patience) {
    return rank.communicator().messages().begin({&message, 1}, timeout).front();
}

bool wait(Rank &rank, const std::shared_ptr<Operation> &operation, std::chrono::nanoseconds limit = patience) {
    return rank.communicator().messages().wait(operation, limit, do_nothing);
}

using Heard = std::vector<std::optional<Failure>>;

void all_reduce(Rank &rank, int num_ranks, std::size_t count) {
    const Fixture &plans = fixture("all_reduce", "ring", num_ranks);
    std::vector<std::int64_t> input(count, rank.rank + 1), output(count);
    rank.communicator().run(call_of(plans, rank.rank, Dtype::int64, Op::sum, count,
                                    reinterpret_cast<const std::byte *>(input.data()),
                                    reinterpret_cast<std::byte *>(output.data())),
                            do_nothing);
    CHECK(std::ranges::count(output, num_ranks * (num_ranks + 1) / 2) == static_cast<std::ptrdiff_t>(count));
}

} // namespace

TEST(messages_go_to_and_fro) {
    for (const WorldOptions &options :
         {WorldOptions{}, WorldOptions{.spin = true}, WorldOptions{.as_processes = true}}) {
        for (Memory memory : {Memory::owned, Memory::registered}) {
            World world(2, options);
            world.run([&](Rank &rank) {
                int seed = 0;
                for (std::size_t size : {0U, 1U, 48U, 49U, 8192U, 8193U, 1048579U}) {
                    for (int round = 0; round < 5; ++round, ++seed) {
                        const Buffer out(rank.arena, memory, size), in(rank.arena, memory, size);
                        fill(out, seed + rank.rank);
                        if (rank.rank == 0) {
                            run(rank, {send_of(out, 1)});
                            run(rank, {receive_of(in, 1)});
                        } else {
                            run(rank, {receive_of(in, any_source, std::nullopt)});
                            run(rank, {send_of(out, 0)});
                        }
                        check_filled(in, seed + 1 - rank.rank);
                    }
                }
                rank.communicator().close(do_nothing);
            });
        }
    }
}

TEST(messages_need_nobody_s_help_once_begun) {
    // Large messages that both begin and neither waits for: the background threads move them.
    World world(2, {.as_processes = true});
    world.run([&world](Rank &rank) {
        const Buffer out(rank.arena, Memory::owned, 3'000'000), in(rank.arena, Memory::owned, 3'000'000);
        fill(out, rank.rank);
        const auto received = begin(rank, receive_of(in, 1 - rank.rank));
        const auto sent = begin(rank, send_of(out, 1 - rank.rank));
        while (!received->end->is_passed() || !sent->end->is_passed()) {
            CHECK(!world.has_failed());
            std::this_thread::yield();
        }
        check_filled(in, 1 - rank.rank);
    });
}

TEST(messages_need_nobody_s_help_where_mostly_somebody_waits) {
    for (const bool spin : {false, true}) {
        World world(2, {.spin = spin});
        world.run([&](Rank &rank) {
            const int peer = 1 - rank.rank;
            for (int round = 0; round < num_rounds; ++round) {
                for (int i = 0; i <= 20; ++i) {
                    Buffer out(rank.arena, Memory::owned, i < 20 ? 5 : 1 << 20);
                    Buffer in(rank.arena, Memory::owned, out.bytes().size());
                    fill(out, rank.rank + round);
                    const auto received = begin(rank, receive_of(in, peer)), sent = begin(rank, send_of(out, peer));
                    for (const auto &one : {received, sent}) CHECK(i < 20 ? wait(rank, one) : one->end->wait(patience));
                    check_filled(in, peer + round);
                }
            }
        });
    }
}

TEST(messages_of_several_threads_of_a_rank) {
    // Each thread has its own tag; one drives, the others sleep and take over.
    for (const WorldOptions &options : {WorldOptions{}, WorldOptions{.as_processes = true}}) {
        World world(2, options);
        world.run([](Rank &rank) {
            constexpr int num_threads = 4;
            std::vector<std::exception_ptr> errors(num_threads);
            std::vector<std::thread> threads;
            for (int number = 0; number < num_threads; ++number) {
                threads.emplace_back([&rank, &errors, number] {
                    try {
                        std::mt19937 random(static_cast<unsigned>(number));
                        for (int round = 0; round < num_rounds; ++round) {
                            const std::size_t size = random() % 3 == 0 ? 100'000 : random() % 200;
                            const Buffer out(rank.arena, Memory::owned, size), in(rank.arena, Memory::owned, size);
                            fill(out, round + rank.rank);
                            const auto tag = static_cast<std::uint64_t>(number);
                            if (random() % 2 == 0) {
                                run(rank, {send_of(out, 1 - rank.rank, tag), receive_of(in, 1 - rank.rank, tag)});
                            } else {
                                const auto sent = begin(rank, send_of(out, 1 - rank.rank, tag));
                                const auto received = begin(rank, receive_of(in, 1 - rank.rank, tag));
                                CHECK(wait(rank, received) && wait(rank, sent) && !received->failure);
                            }
                            check_filled(in, round + 1 - rank.rank);
                        }
                    } catch (...) { errors[static_cast<std::size_t>(number)] = std::current_exception(); }
                });
            }
            for (std::thread &thread : threads) thread.join();
            for (const auto &error : errors) {
                if (error) std::rethrow_exception(error);
            }
        });
    }
}

TEST(messages_beside_calls_of_the_same_communicator) {
    for (const WorldOptions &options : {WorldOptions{}, WorldOptions{.as_processes = true}}) {
        World world(4, options);
        world.run([](Rank &rank) {
            std::exception_ptr error;
            std::thread beside([&] {
                try {
                    for (int round = 0; round < num_rounds / 2; ++round)
                        all_reduce(rank, 4, round % 2 == 0 ? 10 : 30'000);
                } catch (...) { error = std::current_exception(); }
            });
            for (int round = 0; round < num_rounds / 2; ++round) {
                const std::size_t size = round % 3 == 0 ? 200'000 : 100;
                std::vector<std::unique_ptr<Buffer>> buffers;
                std::vector<std::shared_ptr<Operation>> operations;
                for (int peer = 0; peer < 4; ++peer) {
                    buffers.push_back(std::make_unique<Buffer>(rank.arena, Memory::owned, size));
                    operations.push_back(begin(rank, receive_of(*buffers.back(), peer)));
                }
                for (int peer = 0; peer < 4; ++peer) {
                    buffers.push_back(std::make_unique<Buffer>(rank.arena, Memory::owned, size));
                    fill(*buffers.back(), rank.rank);
                    operations.push_back(begin(rank, send_of(*buffers.back(), peer)));
                }
                for (const auto &operation : operations) CHECK(wait(rank, operation) && !operation->failure);
                for (int peer = 0; peer < 4; ++peer) check_filled(*buffers[static_cast<std::size_t>(peer)], peer);
            }
            beside.join();
            if (error) std::rethrow_exception(error);
        });
    }
}

TEST(messages_progress_without_the_shared_pool) {
    World world(3, {.as_processes = true});
    world.run([](Rank &rank) {
        while (rank.context->take_slot() || rank.context->take_slot_to_share_out()) continue;
        const int next = (rank.rank + 1) % 3, before = (rank.rank + 2) % 3;
        for (std::size_t size : {5000U, 500'000U}) {
            const Buffer out(rank.arena, Memory::owned, size), in(rank.arena, Memory::owned, size);
            fill(out, rank.rank);
            run(rank, {send_of(out, next), receive_of(in, before)});
            check_filled(in, before);
            all_reduce(rank, 3, 20'000);
        }
    });
}

TEST(messages_wait_for_a_limit_without_harm) {
    World world(2);
    world.run([&world](Rank &rank) {
        const Buffer buffer(rank.arena, Memory::owned, 100);
        if (rank.rank == 0) {
            const auto received = begin(rank, receive_of(buffer, 1));
            CHECK(!wait(rank, received, 10ms) && !wait(rank, received, 0ms));
            CHECK(rank.communicator().messages().missing(*received) == std::vector<int>{1});
            world.meet();
            CHECK(wait(rank, received) && !received->failure);
            check_filled(buffer, 3);
        } else {
            fill(buffer, 3);
            world.meet();
            run(rank, {send_of(buffer, 0)});
        }
    });
}

TEST(messages_time_out_and_name_whom_they_waited_for) {
    for (bool any : {false, true}) {
        World world(3);
        Heard heard(3);
        world.run([&](Rank &rank) {
            const Buffer buffer(rank.arena, Memory::owned, 100);
            auto &own = heard[static_cast<std::size_t>(rank.rank)];
            if (rank.rank == 0) {
                own = failure_of([&] { run(rank, {receive_of(buffer, any ? any_source : 2, 7)}, 200ms); });
                CHECK(own && failure_of([&] { all_reduce(rank, 3, 10); })->cause == Cause::timeout,
                      "calls fail with it");
                CHECK(own->label == (any ? "recv from any rank (tag 7)" : "recv from rank 2 (tag 7)"), own->label);
            } else {
                own = failure_of([&] { all_reduce(rank, 3, 10); });
            }
        });
        for (const auto &own : heard) {
            CHECK(own && own->cause == Cause::timeout && own->seconds == 0.2);
            CHECK((own->missing == (any ? std::vector<int>{1, 2} : std::vector<int>{2})));
        }
    }
}

TEST(messages_hear_of_failures_of_calls_and_aborts) {
    World world(3);
    Heard heard(3);
    world.run([&](Rank &rank) {
        const Buffer buffer(rank.arena, Memory::owned, eager_bytes + 1);
        world.meet();
        auto &own = heard[static_cast<std::size_t>(rank.rank)];
        if (rank.rank == 0) own = failure_of([&] { run(rank, {receive_of(buffer, 1)}); });
        if (rank.rank == 1) {
            const auto sent = begin(rank, send_of(buffer, 2));
            CHECK(wait(rank, sent));
            own = sent->failure;
        }
        if (rank.rank == 2) {
            rank.communicator().abort("out of tea");
            own = failure_of([&] { run(rank, {send_of(buffer, 0)}); });
        }
    });
    for (const auto &own : heard) {
        CHECK(own && own->cause == Cause::aborted && own->rank == 2 && own->text == "out of tea");
    }
}

TEST(messages_hear_that_a_peer_has_closed_once_all_it_sent_is_read) {
    World world(2);
    world.run([&world](Rank &rank) {
        const Buffer first(rank.arena, Memory::owned, 5000), second(rank.arena, Memory::owned, 100'000);
        if (rank.rank == 1) {
            fill(first, 1);
            run(rank, {send_of(first, 0)});
            rank.communicator().close(do_nothing);
            world.meet();
            return;
        }
        world.meet();
        run(rank, {receive_of(first, 1)});
        check_filled(first, 1);
        const auto failure = failure_of([&] { run(rank, {receive_of(second, any_source)}); });
        CHECK(failure && failure->cause == Cause::aborted && failure->rank == 1);
        CHECK(failure->missing == std::vector{1} && failure->text.starts_with("rank 0 is in recv from any rank"),
              failure->text);
    });
}

TEST(messages_to_one_that_has_closed_fail_alone_where_they_are_short) {
    World world(3);
    world.run([&world](Rank &rank) {
        const Buffer buffer(rank.arena, Memory::owned, 10), long_one(rank.arena, Memory::owned, 1'000'000);
        if (rank.rank == 1) rank.communicator().close(do_nothing);
        world.meet();
        if (rank.rank == 0) {
            const auto lost = failure_of([&] { run(rank, {send_of(buffer, 1)}); });
            CHECK(lost && lost->cause == Cause::aborted && lost->rank == 1 && lost->self == 0);
            run(rank, {send_of(buffer, 2)});
        }
        if (rank.rank == 2) run(rank, {receive_of(buffer, any_source)}); // as if nothing had been lost
        world.meet();
        if (rank.rank == 0) CHECK(failure_of([&] { run(rank, {send_of(long_one, 1)}); }));
        if (rank.rank == 2) CHECK(failure_of([&] { run(rank, {receive_of(buffer, 0)}); }), "of a long one all hear");
    });
}

TEST(messages_are_drained_by_close) {
    World world(2, {.as_processes = true});
    world.run([](Rank &rank) {
        const Buffer out(rank.arena, Memory::owned, 2'000'000), in(rank.arena, Memory::owned, 2'000'000);
        fill(out, rank.rank);
        const auto received = begin(rank, receive_of(in, 1 - rank.rank));
        const auto sent = begin(rank, send_of(out, 1 - rank.rank));
        rank.communicator().close(do_nothing);
        CHECK(received->finished && sent->finished && !received->failure && !sent->failure);
        check_filled(in, 1 - rank.rank);
        const auto late = failure_of([&] { run(rank, {send_of(out, 1 - rank.rank)}); });
        CHECK(late && late->cause == Cause::aborted && late->rank == rank.rank);
    });
}

TEST(messages_interrupted_tell_the_others) {
    struct Interrupt final : std::runtime_error {
        using std::runtime_error::runtime_error;
    };
    World world(2);
    world.run([](Rank &rank) {
        const Buffer buffer(rank.arena, Memory::owned, 100);
        if (rank.rank == 1) {
            const auto failure = failure_of([&] { run(rank, {receive_of(buffer, 0)}); });
            CHECK(failure && failure->rank == 0 && failure->text == "interrupted", failure ? failure->text : "nothing");
            return;
        }
        PointToPoint &messages = rank.communicator().messages();
        const auto throwing = [] { throw Interrupt("control-C"); };
        const Message other = receive_of(buffer, 1, 1), message = receive_of(buffer, 1);
        const auto begun = messages.begin({&other, 1}, patience);
        bool interrupted = false;
        try {
            messages.wait(begun.front(), patience, throwing);
        } catch (const Interrupt &) { interrupted = true; }
        CHECK(interrupted && !begun.front()->end->is_passed(), "a wait that is interrupted leaves all as it is");
        interrupted = false;
        try {
            messages.run({&message, 1}, patience, throwing);
        } catch (const Interrupt &) { interrupted = true; }
        CHECK(interrupted && begun.front()->finished && begun.front()->failure);
    });
}

TEST(messages_that_fail_leave_no_reader_behind) {
    // One rank gives up at any moment, and all ranks free memory that others may be reading.
    for (int round = 0; round < num_rounds; ++round) {
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
                const int next = (rank.rank + 1) % 3, before = (rank.rank + 2) % 3;
                const Memory memory = round % 2 == 0 ? Memory::owned : Memory::registered;
                for (;;) {
                    const Buffer out(rank.arena, memory, 700'000), in(rank.arena, memory, 700'000);
                    fill(out, rank.rank);
                    const auto failure = failure_of([&] { run(rank, {send_of(out, next), receive_of(in, before)}); });
                    if (!failure) {
                        check_filled(in, before);
                        continue;
                    }
                    CHECK(failure->cause == Cause::aborted && failure->text == "any moment", failure->text);
                    return;
                }
            });
        } catch (...) { error = std::current_exception(); }
        killer.join();
        if (error) std::rethrow_exception(error);
    }
}

TEST(messages_of_others_are_taken_while_two_ranks_need_nobody_else) {
    for (const bool spin : {true, false}) {
        World world(3, {.spin = spin});
        std::atomic<bool> sent{false};
        world.run([&](Rank &rank) {
            constexpr int count = 24; // more than a channel holds
            const Buffer buffer(rank.arena, Memory::owned, 8), word(rank.arena, Memory::owned, 1);
            if (rank.rank == 2) {
                for (int i = 0; i < count; ++i) {
                    fill(buffer, i);
                    run(rank, {send_of(buffer, 0)});
                }
                sent.store(true);
                return;
            }
            for (bool more = true; more;) {
                if (rank.rank == 0) word.data()[0] = static_cast<std::byte>(!sent.load());
                run(rank, {rank.rank == 0 ? send_of(word, 1) : receive_of(word, 0)});
                run(rank, {rank.rank == 0 ? receive_of(word, 1) : send_of(word, 0)});
                more = word.data()[0] != std::byte{0};
            }
            for (int i = 0; i < count && rank.rank == 0; ++i) {
                run(rank, {receive_of(buffer, 2)});
                check_filled(buffer, i);
            }
        });
    }
}

TEST(messages_are_taken_by_ranks_that_wait_in_a_call) {
    enum class In { call, call_on_the_stream, call_beside_a_receive, call_after_an_alarm, many_calls };
    constexpr int count = 24; // more than a channel holds
    for (const WorldOptions &options : {WorldOptions{}, WorldOptions{.spin = true}, WorldOptions{.as_processes = true},
                                        WorldOptions{.bytes_per_second = 1e9}}) {
        for (const In in :
             {In::call, In::call_on_the_stream, In::call_beside_a_receive, In::call_after_an_alarm, In::many_calls}) {
            World world(2, options);
            world.run([in](Rank &rank) {
                const Buffer buffer(rank.arena, Memory::owned, in == In::call ? 8192 : 8);
                const Fixture &plans =
                    in == In::many_calls ? fixture("broadcast", "binomial", 2, 1) : fixture("all_reduce", "ring", 2);
                std::int64_t numbers[2] = {7, 0};
                const Call call =
                    call_of(plans, rank.rank, Dtype::int64, Op::sum, 1, reinterpret_cast<const std::byte *>(numbers),
                            reinterpret_cast<std::byte *>(numbers + 1));
                const auto meet = [&] {
                    Communicator &communicator = rank.communicator();
                    if (in == In::call_on_the_stream) {
                        const auto work = communicator.submit(call);
                        CHECK(work->end().wait(patience) && !work->end().failure());
                    }
                    const int num_calls = in == In::many_calls ? 150 : 1; // the first ones wait for no rank
                    for (int i = 0; i < num_calls; ++i) communicator.run(call, do_nothing);
                };
                if (rank.rank == 0) {
                    for (int i = 0; i < count; ++i) {
                        fill(buffer, i);
                        run(rank, {send_of(buffer, 1)});
                    }
                    meet();
                    if (in == In::call_beside_a_receive) run(rank, {send_of(buffer, 1, 1)});
                    return;
                }
                // Like an endpoint that is used again, whose count of alarms continues.
                if (in == In::call_after_an_alarm) rank.communicator().transport().control(1).raise_alarm();
                const Buffer late(rank.arena, Memory::owned, 8);
                std::shared_ptr<Operation> beside;
                if (in == In::call_beside_a_receive) beside = begin(rank, receive_of(late, 0, 1));
                meet();
                for (int i = 0; i < count; ++i) {
                    run(rank, {receive_of(buffer, 0)});
                    check_filled(buffer, i);
                }
                if (beside) CHECK(wait(rank, beside) && !beside->failure);
            });
        }
    }
}

TEST(messages_that_nobody_reads_leave_slots_for_collectives) {
    World world(2);
    world.run([&world](Rank &rank) {
        const Buffer buffer(rank.arena, Memory::owned, 1000);
        if (rank.rank == 0) {
            for (int i = 0; i < 5; ++i) run(rank, {send_of(buffer, 1)}); // four from the pool and a reserved slot
            int num_left = 0;
            while (rank.context->take_slot()) ++num_left;
            CHECK(num_left >= 4, num_left);
        }
        world.meet();
        for (int i = 0; i < 5 && rank.rank == 1; ++i) run(rank, {receive_of(buffer, 0)});
    });
}

TEST(channels_take_little_memory_for_each_communicator) {
    CHECK(Endpoint::committed_bytes(2) < std::size_t{24} << 10, Endpoint::committed_bytes(2));
    CHECK(Endpoint::committed_bytes(8) < std::size_t{60} << 10, Endpoint::committed_bytes(8));
    CHECK(Endpoint::committed_bytes(64) < std::size_t{300} << 10, Endpoint::committed_bytes(64));
}
