// Ranks on several hosts: calls and messages between them, and how they fail together. The hosts are pretended: see
// hosts.h.

#include "check.h"
#include "world.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <sched.h>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace hocket;
using namespace hocket::test;
using namespace std::chrono_literals;

namespace {

/// Where the ranks of a world show what they have of a group, before they open it.
struct Places {
    explicit Places(int num_ranks) : of_rank(static_cast<std::size_t>(num_ranks)) {}
    std::vector<std::pair<std::size_t, std::uint32_t>> of_rank; // offset and generation

    /// Before they meet.
    void show(Rank &rank, const std::vector<int> &members) {
        const int size = static_cast<int>(members.size());
        const std::size_t offset =
            rank.context->add_endpoint(Endpoint::committed_bytes(size), Endpoint::reserved_bytes(size));
        of_rank[static_cast<std::size_t>(rank.rank)] = {offset, rank.context->generation_of(offset)};
    }
    /// After it.
    std::unique_ptr<Communicator> open(World &world, Rank &rank, const std::vector<int> &members) const {
        std::vector<std::size_t> offsets;
        std::vector<std::uint32_t> generations;
        for (const int member : members) {
            offsets.push_back(of_rank[static_cast<std::size_t>(member)].first);
            generations.push_back(of_rank[static_cast<std::size_t>(member)].second);
        }
        const auto own = static_cast<int>(std::ranges::find(members, rank.rank) - members.begin());
        return std::make_unique<Communicator>(rank.context, members, own, offsets, false, world.connections(rank.rank),
                                              generations);
    }
};

/// One int64 of each rank, its number from 1, is summed.
std::int64_t sum(Communicator &communicator, std::size_t count = 1) {
    const Fixture &plans = fixture("all_reduce", "direct", communicator.size());
    std::vector<std::int64_t> input(count, communicator.rank() + 1), output(count);
    communicator.run(call_of(plans, communicator.rank(), Dtype::int64, Op::sum, count,
                             reinterpret_cast<const std::byte *>(input.data()),
                             reinterpret_cast<std::byte *>(output.data())),
                     do_nothing);
    return output.back();
}

Failure failure_of_sums(Communicator &communicator) {
    for (;;) {
        if (const auto failure = failure_of([&] { sum(communicator); })) return *failure;
    }
}

// ThreadSanitizer takes ten times as long.
const std::vector<std::vector<int>> layouts =
    thread_sanitizer ? std::vector<std::vector<int>>{{2, 1}} : std::vector<std::vector<int>>{{1, 1}, {2, 1}, {2, 1, 2}};

int size_of_layout(const std::vector<int> &hosts) {
    int size = 0;
    for (const int one : hosts) size += one;
    return size;
}

} // namespace

TEST(fixtures_across_hosts) {
    for (const auto &hosts : layouts) {
        const int num_ranks = size_of_layout(hosts);
        World world(num_ranks, {.hosts = hosts});
        world.run([&](Rank &rank) {
            run_fixtures(rank);
            rank.communicator().close(do_nothing);
        });
    }
}

TEST(messages_across_hosts) {
    World world(3, {.hosts = {2, 1}});
    world.run([&](Rank &rank) {
        for (const std::size_t size : {1UL, 3000UL, 300'000UL, 3 * piece_bytes}) {
            for (const int distance : {1, 2}) {
                const int to = (rank.rank + distance) % 3, from = (rank.rank + 3 - distance) % 3;
                auto sent = counted(size, static_cast<std::size_t>(rank.rank));
                std::vector<std::byte> found(size);
                const std::array both{
                    Message{.sends = true, .peer = to, .tag = 3, .data = sent.data(), .num_bytes = size},
                    Message{.sends = false, .peer = from, .tag = 3, .data = found.data(), .num_bytes = size}};
                rank.communicator().messages().run(both, patience, do_nothing);
                CHECK(found == counted(size, static_cast<std::size_t>(from)), size);
            }
        }
        rank.communicator().close(do_nothing);
    });
}

/// The root makes its calls without an answer: nobody is further ahead than records reach back.
TEST(a_root_runs_ahead_of_other_hosts_and_waits_for_them) {
    World world(3, {.hosts = {1, 2}});
    world.run([&](Rank &rank) {
        const Fixture &plans = fixture("broadcast", "binomial", 3);
        for (std::int64_t number = 1; number <= 300; ++number) {
            std::int64_t given = rank.rank == 0 ? number : -1, found = -1;
            rank.communicator().run(call_of(plans, rank.rank, Dtype::int64, Op::sum, 1,
                                            reinterpret_cast<const std::byte *>(&given),
                                            reinterpret_cast<std::byte *>(&found)),
                                    do_nothing);
            CHECK(found == number, found);
            for (int member = 0; member < 3; ++member) {
                const auto last = static_cast<std::int64_t>(rank.communicator().members().last_call(member));
                CHECK(number < last + static_cast<std::int64_t>(ControlPage::history), member, "is at", last);
            }
        }
        rank.communicator().close(do_nothing);
    });
}

/// Their results say that all others have come as far.
TEST(calls_whose_results_need_all_ranks_wait_for_no_news) {
    World world(3, {.hosts = {1, 2}});
    world.hosts().pause(true);
    world.run([&](Rank &rank) {
        for (std::size_t call = 0; call < 3 * ControlPage::history; ++call) CHECK(sum(rank.communicator()) == 6);
        world.meet();
        world.hosts().pause(false);
        rank.communicator().close(do_nothing);
    });
}

// Endpoints -----------------------------------------------------------------------------------------------------------

TEST(groups_across_hosts_use_their_pages_again) {
    constexpr int rounds = 12;
    World world(5, {.hosts = {2, 1, 2}});
    Places places(5);
    std::array<std::size_t, rounds> first_offsets{};
    std::array<std::uint32_t, rounds> generations{};
    world.run([&](Rank &rank) {
        for (std::size_t round = 0; round < rounds; ++round) {
            // In turn over hosts, with one rank left out, and on one host alone.
            std::vector<int> members = round % 3 == 2 ? std::vector{3, 4} : std::vector{0, 2, 4};
            if (round % 3 == 1) members = {0, 1, 3};
            const bool is_member = std::ranges::count(members, rank.rank) > 0;
            if (is_member) places.show(rank, members);
            world.meet();
            if (rank.rank == 0) std::tie(first_offsets[round], generations[round]) = places.of_rank[0];
            if (is_member) {
                const auto group = places.open(world, rank, members);
                const auto size = static_cast<std::int64_t>(members.size());
                for (int call = 0; call < 10; ++call) CHECK(sum(*group) == size * (size + 1) / 2);
                group->close(do_nothing);
            }
            world.meet(); // all have left, and the others will hear of it
        }
        rank.communicator().close(do_nothing);
    });
    CHECK(std::ranges::max(generations) > 0, "a page was used again");
}

// Failures ------------------------------------------------------------------------------------------------------------

TEST(a_difference_between_hosts_is_told_alike_by_all) {
    World world(5, {.hosts = {2, 1, 2}});
    world.run([&](Rank &rank) {
        CHECK(sum(rank.communicator()) == 15);
        const auto failure = failure_of([&] { sum(rank.communicator(), rank.rank == 3 ? 7 : 5); });
        CHECK(failure && failure->cause == Cause::mismatch && failure->sequence == 2, rank.rank);
        for (int member = 0; member < 5; ++member) {
            CHECK(failure->calls.contains(member), rank.rank, "does not know the call of", member);
            CHECK(failure->calls.at(member).count == (member == 3 ? 7U : 5U), rank.rank, member);
        }
        rank.communicator().close(do_nothing);
    });
}

/// Some give up at once, each with a reason of its own; all name one of them.
TEST(hosts_agree_which_reason_was_first) {
    constexpr int rounds = thread_sanitizer ? 30 : 100;
    World world(5, {.hosts = {2, 1, 2}});
    const std::vector members{0, 1, 2, 3, 4};
    Places places(5);
    std::vector<std::string> told(5);
    world.run([&](Rank &rank) {
        for (int round = 0; round < rounds; ++round) {
            places.show(rank, members);
            world.meet();
            const auto group = places.open(world, rank, members);
            if (round % 3 == 0) CHECK(sum(*group) == 15);
            world.meet();
            if ((rank.rank + round) % 5 < 3) {
                for (int turn = 0; turn < (round * 7 + rank.rank * 3) % 11; ++turn) std::this_thread::yield();
                group->abort("reason of " + std::to_string(rank.rank));
            }
            const auto begun = Clock::now();
            const Failure failure = failure_of_sums(*group);
            CHECK(failure.cause == Cause::aborted, failure.text);
            CHECK(failure.text == "reason of " + std::to_string(failure.rank), failure.text);
            CHECK(Clock::now() - begun < 2s || thread_sanitizer, "a decision has come");
            told[static_cast<std::size_t>(rank.rank)] = failure.text;
            world.meet();
            CHECK(std::ranges::count(told, told[0]) == 5, round, "told:", told[0], told[1], told[2], told[3], told[4]);
            world.meet();
            group->close(do_nothing);
        }
        rank.communicator().close(do_nothing);
    });
}

TEST(a_reason_reaches_a_member_that_comes_later) {
    World world(3, {.hosts = {1, 1, 1}});
    const std::vector members{0, 1, 2};
    Places places(3);
    world.run([&](Rank &rank) {
        places.show(rank, members);
        world.meet();
        constexpr std::int32_t mark = 77;
        if (rank.rank == 2) { // what rank 1 has written last comes after the decision
            const std::byte *const mirror = rank.context->at(1).mapping->base() + places.of_rank[1].first;
            const auto &waits_for = reinterpret_cast<const ControlPage *>(mirror)->waits_for;
            while (waits_for.load() != mark) CHECK(!world.has_failed());
        }
        const auto group = places.open(world, rank, members);
        if (rank.rank == 1) group->abort("out of coffee");
        const auto begun = Clock::now();
        const Failure failure = failure_of_sums(*group);
        CHECK(failure.cause == Cause::aborted && failure.rank == 1, rank.rank);
        CHECK(failure.text == "out of coffee", rank.rank, failure.text);
        CHECK(Clock::now() - begun < 2s || thread_sanitizer);
        if (rank.rank == 1) group->members().own().waits_for.store(mark);
        world.meet();
        group->close(do_nothing);
        rank.communicator().close(do_nothing);
    });
}

TEST(a_rank_that_dies_is_named_with_its_host) {
    for (const int victim : {1, 3}) {
        World world(4, {.hosts = {2, 2}});
        world.run([&](Rank &rank) {
            CHECK(sum(rank.communicator()) == 10);
            if (rank.rank == victim) return world.hosts().kill(victim);
            const Failure failure = failure_of_sums(rank.communicator());
            CHECK(failure.cause == Cause::died && failure.rank == victim, rank.rank, failure.text);
            CHECK(failure.text.empty() && failure.hosts.at(victim) == (victim == 1 ? "host 0" : "host 1"));
            rank.communicator().close(do_nothing);
        });
    }
}

/// Rank 3 has nobody any more who tells it of rank 1, or tells others of it.
TEST(ranks_whose_leader_has_died_are_cut_off_from_other_hosts) {
    World world(4, {.hosts = {2, 2}});
    const std::vector members{1, 3};
    Places places(4);
    world.run([&](Rank &rank) {
        const bool is_member = rank.rank % 2 == 1;
        if (is_member) places.show(rank, members);
        world.meet();
        std::unique_ptr<Communicator> group;
        if (is_member) {
            group = places.open(world, rank, members);
            CHECK(sum(*group) == 3);
        }
        world.meet();
        if (rank.rank == 2) world.hosts().kill(2);
        if (!is_member) return;
        const auto begun = Clock::now();
        const auto failure = failure_of([&] {
            std::byte byte{};
            const std::array wanted{
                Message{.sends = false, .peer = 1 - group->rank(), .tag = 0, .data = &byte, .num_bytes = 1}};
            group->messages().run(wanted, patience, do_nothing);
        });
        CHECK(failure && failure->cause == Cause::died && failure->text == "cut off", rank.rank);
        CHECK(failure->rank == 4 - rank.rank, rank.rank, "names", failure->rank);
        CHECK(rank.rank == 1 || Clock::now() - begun < 1s || thread_sanitizer, "no decision is waited for");
        group->close(do_nothing);
    });
}

TEST(hosts_that_cannot_reach_each_other_name_each_other) {
    World world(4, {.hosts = {2, 2}});
    std::atomic<int> num_done{0};
    world.run([&](Rank &rank) {
        CHECK(sum(rank.communicator()) == 10);
        num_done.fetch_add(1);
        while (num_done.load() < 4) sched_yield(); // or some would be cut off in this sum
        if (rank.rank == 0) world.hosts().cut(1);
        const Failure failure = failure_of_sums(rank.communicator());
        CHECK(failure.cause == Cause::died && failure.text == "cut off", rank.rank, failure.text);
        CHECK(failure.rank == (rank.rank < 2 ? 2 : 0), rank.rank, "names", failure.rank);
        rank.communicator().close(do_nothing);
    });
}

TEST(a_rank_that_closes_is_named_on_other_hosts) {
    World world(3, {.hosts = {1, 2}});
    world.run([&](Rank &rank) {
        CHECK(sum(rank.communicator()) == 6);
        if (rank.rank == 1) return rank.communicator().close(do_nothing);
        const auto failure = failure_of([&] { sum(rank.communicator()); });
        CHECK(failure && failure->cause == Cause::aborted && failure->rank == 1, rank.rank);
        CHECK(failure->missing == std::vector{1}, rank.rank);
        rank.communicator().close(do_nothing);
    });
}
