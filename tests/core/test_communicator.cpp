// Calls in order: on the stream and blocking, on several communicators at once; and closing correctly.

#include "check.h"
#include "world.h"

#include <algorithm>
#include <barrier>
#include <random>
#include <thread>
#include <utility>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr std::int64_t sum_to(int num_ranks) { return std::int64_t{num_ranks} * (num_ranks + 1) / 2; }

/// all_reduce of int64: every element is rank + 1 before and the sum of all after.
struct Reduction {
    Reduction(const Fixture &plans, const Rank &rank, std::size_t count)
        : fixture(plans), number(rank.rank), input(count, rank.rank + 1), output(count, -1) {}

    Call call() {
        return call_of(fixture, number, Dtype::int64, Op::sum, input.size(),
                       reinterpret_cast<const std::byte *>(input.data()), reinterpret_cast<std::byte *>(output.data()));
    }
    void check() const {
        for (std::size_t i = 0; i < output.size(); ++i) {
            CHECK(output[i] == sum_to(fixture.num_ranks), fixture.name(), "rank", number, "element", i, output[i]);
        }
    }

    const Fixture &fixture;
    int number;
    std::vector<std::int64_t> input, output;
};

void run_and_check(Communicator &communicator, const Fixture &fixture, const Rank &rank, std::size_t count) {
    Reduction reduction(fixture, rank, count);
    communicator.run(reduction.call(), do_nothing);
    reduction.check();
}

} // namespace

TEST(communicator_blocks_beside_its_stream) {
    // All calls are alike, so their order among the threads of a rank does not matter to the others.
    for (int num_ranks : {2, 3, 8}) {
        const Fixture &ring = fixture("all_reduce", "ring", num_ranks);
        World world(num_ranks);
        world.run([&ring](Rank &rank) {
            constexpr int rounds = 40;
            std::exception_ptr error;
            std::thread beside([&] {
                try {
                    for (int i = 0; i < rounds; ++i) run_and_check(rank.communicator(), ring, rank, 500);
                } catch (...) { error = std::current_exception(); }
            });
            std::vector<std::unique_ptr<Reduction>> reductions;
            std::vector<std::shared_ptr<Work>> works;
            for (int i = 0; i < rounds; ++i) {
                reductions.push_back(std::make_unique<Reduction>(ring, rank, 500));
                works.push_back(rank.communicator().submit(reductions.back()->call()));
            }
            for (int i = 0; i < rounds; ++i) {
                const auto at = static_cast<std::size_t>(i);
                CHECK(works[at]->end().wait(patience) && works[at]->end().is_passed());
                CHECK(!works[at]->end().failure(), text_of(works[at]->end().failure()));
                reductions[at]->check();
            }
            beside.join();
            if (error) std::rethrow_exception(error);
        });
    }
}

TEST(who_waits_runs_what_nobody_has_begun) {
    // Each rank launches, waits, and blocks at random, also from a second thread.
    for (const bool spin : {false, true}) {
        for (int num_ranks : {1, 2, 5}) {
            const Fixture &ring = fixture("all_reduce", "ring", num_ranks);
            World world(num_ranks, {.spin = spin});
            world.run([&ring](Rank &rank) {
                Communicator &communicator = rank.communicator();
                const auto play = [&](unsigned seed) {
                    constexpr int rounds = 30;
                    std::minstd_rand random(seed);
                    for (int round = 0; round < rounds; ++round) {
                        std::vector<std::unique_ptr<Reduction>> reductions;
                        std::vector<std::shared_ptr<Work>> works;
                        for (std::size_t i = 0; i < 4; ++i) {
                            reductions.push_back(std::make_unique<Reduction>(ring, rank, 500));
                            works.push_back(communicator.submit(reductions.back()->call()));
                        }
                        const bool is_behind = random() % 2 == 0;
                        if (!is_behind) run_and_check(communicator, ring, rank, 500);
                        if (random() % 3 == 0)
                            std::this_thread::sleep_for(std::chrono::microseconds(random() % 500)); // at any moment
                        for (std::size_t left = 4, at = random() % 4; left > 0; --left, at = (at + 1) % 4) {
                            const auto limit = std::chrono::microseconds(random() % 2 == 0 ? 5 : 100'000);
                            communicator.run_awaited(*works[at], Clock::now() + limit);
                            CHECK(works[at]->end().wait(patience) && !works[at]->end().failure());
                            reductions[at]->check();
                        }
                        if (is_behind) run_and_check(communicator, ring, rank, 500);
                    }
                };
                std::exception_ptr error;
                std::jthread beside([&] {
                    try {
                        play(static_cast<unsigned>(rank.rank) + 1);
                    } catch (...) { error = std::current_exception(); }
                });
                play(static_cast<unsigned>(rank.rank) + 101);
                beside.join();
                if (error) std::rethrow_exception(error);
            });
        }
    }
}

TEST(what_nobody_waits_for_begins_although_the_stream_sleeps) {
    const Fixture &direct = fixture("all_reduce", "direct", 2);
    for (const bool spin : {false, true}) {
        World world(2, {.spin = spin});
        world.run([&](Rank &rank) {
            Communicator &communicator = rank.communicator();
            constexpr int rounds = 30, calls = 20;
            int num_run_here = 0;
            for (int round = 0; round < rounds; ++round) {
                for (int i = 0; i < calls; ++i) {
                    Reduction reduction(direct, rank, 5);
                    const auto work = communicator.submit(reduction.call());
                    communicator.run_awaited(*work, Clock::now() + patience);
                    num_run_here += work->end().is_passed() ? 1 : 0; // otherwise the stream still runs it
                    CHECK(work->end().wait(patience) && !work->end().failure());
                    reduction.check();
                }
                Reduction reduction(direct, rank, 5);
                const auto work = communicator.submit(reduction.call());
                CHECK(work->end().wait(patience) && !work->end().failure());
                reduction.check();
            }
            CHECK(num_run_here > rounds * calls / 20, num_run_here);
        });
    }
}

TEST(who_waits_in_vain_leaves_the_call_to_the_stream) {
    const Fixture &direct = fixture("all_reduce", "direct", 2);
    World world(2);
    world.run([&](Rank &rank) {
        Clock::duration shortest = patience;
        for (int round = 0; round < 70; ++round) { // more than the calls after which ranks wait for each other
            Reduction first(direct, rank, 5), second(direct, rank, 5);
            if (rank.rank == 1) {
                world.meet();
                for (Reduction *one : {&first, &second}) rank.communicator().run(one->call(), do_nothing);
            } else {
                const auto work = rank.communicator().submit(first.call());
                const auto next = rank.communicator().submit(second.call());
                const auto begin = Clock::now();
                for (const auto *one : {&next, &work})
                    rank.communicator().run_awaited(**one, Clock::now() + std::chrono::microseconds(round * 10));
                shortest = std::min(shortest, Clock::now() - begin);
                CHECK(!work->end().is_passed() && !next->end().is_passed());
                world.meet();
                rank.communicator().run_awaited(*next, Clock::now() + patience);
                CHECK(next->end().wait(patience) && work->end().is_passed());
            }
            for (Reduction *one : {&first, &second}) one->check();
        }
        CHECK(rank.rank == 1 || shortest < attention / 2);
    });
}

TEST(who_waits_sees_the_failure_of_what_it_runs) {
    const Fixture &direct = fixture("all_reduce", "direct", 2);
    World world(2);
    world.run([&](Rank &rank) {
        Reduction first(direct, rank, 5), second(direct, rank, 5);
        if (rank.rank == 1) {
            rank.communicator().abort("enough");
            return;
        }
        const auto work = rank.communicator().submit(first.call()), next = rank.communicator().submit(second.call());
        rank.communicator().run_awaited(*next, Clock::now() + patience);
        for (const auto &one : {work, next}) {
            CHECK(one->end().wait(patience));
            const auto failure = failure_of(*one);
            CHECK(failure && failure->cause == Cause::aborted && failure->rank == 1);
        }
    });
}

TEST(communicator_tells_before_it_waits) {
    // The hook may release something that another member needs to arrive: an interpreter lock, for example.
    const Fixture &direct = fixture("all_reduce", "direct", 2);
    for (const bool others_run : {false, true}) {
        World world(2);
        world.run([&direct, &world, others_run](Rank &rank) {
            if (rank.rank == 1) {
                world.meet();
                run_and_check(rank.communicator(), direct, rank, 5);
                if (others_run) run_and_check(rank.communicator(), direct, rank, 5);
                return;
            }
            Reduction first(direct, rank, 5), second(direct, rank, 5);
            std::shared_ptr<Work> work; // on the stream, it delays the one that is watched
            if (others_run) work = rank.communicator().submit(first.call());
            bool told = false;
            rank.communicator().run(second.call(), do_nothing, [&] {
                if (!std::exchange(told, true)) world.meet();
            });
            CHECK(told);
            second.check();
            if (work) CHECK(work->end().wait(patience) && !work->end().failure());
        });
    }
}

TEST(communicators_do_not_disturb_each_other) {
    // Three at once, each on its own thread, share the staging pool of their rank. No thread has its own core.
    for (const WorldOptions &options :
         {WorldOptions{.num_communicators = 3}, WorldOptions{.num_communicators = 3, .as_processes = true}}) {
        World world(4, options);
        world.run([](Rank &rank) {
            const char *algorithms[] = {"ring", "halving_doubling", "direct_two_shot"};
            std::vector<std::exception_ptr> errors(3);
            std::vector<std::thread> threads;
            for (std::size_t which = 0; which < 3; ++which) {
                threads.emplace_back([&, which] {
                    try {
                        const Fixture &plans = fixture("all_reduce", algorithms[which], 4);
                        for (std::size_t count : {1U, 100U, 30'000U, 400U, 200'000U, 7U}) {
                            run_and_check(*rank.communicators[which], plans, rank, count);
                        }
                    } catch (...) { errors[which] = std::current_exception(); }
                });
            }
            for (std::thread &thread : threads) thread.join();
            for (const auto &error : errors) {
                if (error) std::rethrow_exception(error);
            }
        });
    }
}

TEST(communicator_progresses_without_the_shared_pool) {
    // Another user holds the whole pool, so each channel has only its own slot.
    World world(3, {.as_processes = true});
    world.run([](Rank &rank) {
        while (rank.context->take_slot() || rank.context->take_slot_to_share_out()) continue;
        for (const char *algorithm : {"ring", "direct", "direct_two_shot", "halving_doubling"}) {
            run_and_check(rank.communicator(), fixture("all_reduce", algorithm, 3), rank, 50'000);
        }
    });
}

TEST(communicators_begun_in_opposite_order_share_a_pool_of_one_slot) {
    // Rank 0 calls on the first communicator, rank 1 on the second, and each staging pool is soon empty: a rank's slots
    // are released only when the other rank has begun the call for which it needs a slot itself.
    for (const char *algorithm : {"ring", "direct", "direct_two_shot"}) {
        World world(2, {.num_communicators = 2, .as_processes = true, .max_slots = 1});
        world.run([algorithm, &world](Rank &rank) {
            const Fixture &plans = fixture("all_reduce", algorithm, 2);
            const auto first = static_cast<std::size_t>(rank.rank);
            Reduction begun(plans, rank, 300'000);
            while (rank.context->take_slot_to_share_out()) continue;
            const auto work = rank.communicators[first]->submit(begun.call());
            for (auto slot = rank.context->take_slot(); slot; slot = rank.context->take_slot()) {
                rank.context->return_slot(*slot);
                CHECK(!world.has_failed());
                std::this_thread::yield();
            }
            world.meet(); // neither rank has a slot left
            run_and_check(*rank.communicators[1 - first], plans, rank, 300'000);
            CHECK(work->end().wait(patience) && !work->end().failure(), "the call that began first");
            begun.check();
        });
    }
}

TEST(communicators_in_opposite_order_on_two_threads_of_each_rank) {
    // Both threads of a rank use both communicators, and begin with different ones. They keep in step: a thread alone,
    // after the other one is done, would call both in another order than the other ranks.
    World world(3, {.num_communicators = 2, .as_processes = true, .max_slots = 1});
    world.run([](Rank &rank) {
        while (rank.context->take_slot_to_share_out()) continue;
        constexpr std::size_t num_threads = 2;
        std::vector<std::exception_ptr> errors(num_threads);
        std::vector<std::thread> threads;
        std::barrier step(num_threads);
        for (std::size_t thread = 0; thread < num_threads; ++thread) {
            threads.emplace_back([&rank, &errors, &step, thread] {
                try {
                    std::vector<std::byte> sent(300'000, static_cast<std::byte>(rank.rank)), received(sent.size());
                    for (std::size_t round = 0; round < 20; ++round) {
                        const auto which = (static_cast<std::size_t>(rank.rank) + thread + round) % 2;
                        Communicator &communicator = *rank.communicators[which];
                        run_and_check(communicator, fixture("all_reduce", "ring", 3), rank, 60'000);
                        const int next = (rank.rank + 1) % 3, before = (rank.rank + 2) % 3;
                        const Message messages[] = {
                            {.sends = true, .peer = next, .tag = 0, .data = sent.data(), .num_bytes = sent.size()},
                            {.peer = before, .tag = 0, .data = received.data(), .num_bytes = received.size()}};
                        communicator.messages().run(messages, patience, do_nothing);
                        CHECK(std::ranges::count(received, static_cast<std::byte>(before)) ==
                              static_cast<std::ptrdiff_t>(received.size()));
                        step.arrive_and_wait();
                    }
                } catch (...) {
                    errors[thread] = std::current_exception();
                    for (auto &communicator : rank.communicators) communicator->abort("its test failed");
                    step.arrive_and_drop();
                }
            });
        }
        for (std::thread &thread : threads) thread.join();
        for (const auto &error : errors) {
            if (error) std::rethrow_exception(error);
        }
    });
}

TEST(communicator_of_few_members) {
    // Ranks 3, 1 and 2 of four, in that order: members and ranks of the context are not the same numbers.
    World world(4);
    std::vector<std::size_t> offsets(3);
    const std::vector<int> members{3, 1, 2};
    for (std::size_t i = 0; i < 3; ++i) {
        offsets[i] = world[members[i]].context->add_endpoint(Endpoint::committed_bytes(3), Endpoint::reserved_bytes(3));
    }
    world.run([&](Rank &rank) {
        const auto place = std::ranges::find(members, rank.rank);
        if (place == members.end()) return;
        Rank member;
        member.rank = static_cast<int>(place - members.begin());
        Communicator part(rank.context, members, member.rank, offsets, false);
        CHECK(part.size() == 3 && part.rank() == member.rank);
        for (std::size_t count : {3U, 40'000U}) run_and_check(part, fixture("all_reduce", "ring", 3), member, count);
    });
}

TEST(communicators_come_and_go_in_one_context) {
    World world(2);
    std::vector<std::vector<std::size_t>> offsets(20, std::vector<std::size_t>(2));
    for (auto &pair : offsets) {
        for (int rank : {0, 1}) {
            pair[static_cast<std::size_t>(rank)] =
                world[rank].context->add_endpoint(Endpoint::committed_bytes(2), Endpoint::reserved_bytes(2));
        }
    }
    world.run([&offsets](Rank &rank) {
        for (const auto &pair : offsets) {
            Communicator next(rank.context, {0, 1}, rank.rank, pair, false);
            run_and_check(next, fixture("all_reduce", "direct", 2), rank, 2000);
        }
    });
}

TEST(communicator_closes_while_others_still_read) {
    // The root has sent everything before the others begin: close() waits until they have it.
    for (std::size_t block : {std::size_t{3}, std::size_t{200}}) {
        World world(5);
        world.run([&world, block](Rank &rank) {
            const Fixture &broadcast = fixture("broadcast", "binomial", 5);
            std::vector<std::int64_t> data(block, rank.rank == 0 ? 42 : 0), output(block);
            auto *bytes = reinterpret_cast<std::byte *>(data.data());
            const auto &root = rank.communicator().transport().control(0).state;
            while (rank.rank != 0 && root.load() == ControlPage::open && !world.has_failed()) std::this_thread::yield();
            rank.communicator().run(call_of(broadcast, rank.rank, Dtype::int64, Op::sum, block, bytes,
                                            reinterpret_cast<std::byte *>(output.data())),
                                    do_nothing);
            rank.communicator().close(do_nothing);
            rank.communicators.clear();
            CHECK(output == std::vector<std::int64_t>(block, 42), "rank", rank.rank);
        });
    }
}

TEST(communicators_are_all_finished_before_one_is_closed) {
    // Rank 0 is ahead in the first and waits there; rank 1 arrives only after its wait in the second has failed.
    World world(2, {.num_communicators = 2});
    world.run([](Rank &rank) {
        Communicator &first = *rank.communicators[0], &second = *rank.communicators[1];
        std::int64_t data = rank.rank == 0 ? 42 : 0, output = 0;
        const auto call = call_of(fixture("broadcast", "binomial", 2), rank.rank, Dtype::int64, Op::sum, 1,
                                  reinterpret_cast<std::byte *>(&data), reinterpret_cast<std::byte *>(&output));
        if (rank.rank == 0) {
            first.run(call, do_nothing);
            first.finish(do_nothing);
            second.finish(do_nothing);
        } else {
            const auto failure = failure_of([&] { second.run(call, do_nothing); });
            CHECK(failure && failure->cause == Cause::aborted && failure->rank == 0);
            first.run(call, do_nothing); // what was sent is still there
            CHECK(output == 42, output);
        }
        first.close(do_nothing);
    });
}

TEST(communicator_is_of_no_use_once_closed) {
    World world(2);
    world.run([](Rank &rank) {
        Communicator &communicator = rank.communicator();
        Reduction reduction(fixture("all_reduce", "ring", 2), rank, 10);
        const auto work = communicator.submit(reduction.call());
        communicator.close(do_nothing); // finishes the stream first
        CHECK(work->end().is_passed() && !work->end().failure());
        reduction.check();
        communicator.close(do_nothing); // again: nothing
        for (const auto &failure : {failure_of([&] { communicator.run(reduction.call(), do_nothing); }),
                                    failure_of([&] { communicator.submit(reduction.call()); })}) {
            CHECK(failure && failure->cause == Cause::aborted && failure->rank == rank.rank);
            CHECK(failure->text.find("closed") != std::string::npos, failure->text);
        }
    });
}
