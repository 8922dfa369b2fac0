// Mirrors: what the leader of a host collects, what it writes on the pages of its ranks, and what it refuses.

#include "mirrors/mirrors.h"

#include "check.h"
#include "control/members.h"
#include "transport/shm/shm.h"
#include "world.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace hocket;
using namespace hocket::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t capacity = std::size_t{1} << 28; // of addresses

/// Two hosts with one rank each, between which the test carries what it wants.
struct TwoHosts {
    struct Host {
        std::shared_ptr<Arena> arena = std::make_shared<Arena>(capacity);
        std::shared_ptr<Context> context = std::make_shared<Context>(arena);
        std::unique_ptr<Mirrors> mirrors;
        std::size_t offset = 0;

        std::size_t add() {
            offset = context->add_endpoint(Endpoint::committed_bytes(2), Endpoint::reserved_bytes(2));
            return offset;
        }
    };
    std::array<Host, 2> hosts;

    TwoHosts() {
        for (int rank : {0, 1}) {
            const auto at = static_cast<std::size_t>(rank);
            hosts[at].mirrors = std::make_unique<Mirrors>(rank == 0 ? std::vector<std::size_t>{0, capacity}
                                                                    : std::vector<std::size_t>{capacity, 0});
        }
        for (int rank : {0, 1}) {
            Host &host = hosts[static_cast<std::size_t>(rank)];
            std::vector<int> descriptors{host.arena->descriptor(), host.arena->descriptor()};
            descriptors[static_cast<std::size_t>(1 - rank)] = host.mirrors->descriptor(1 - rank);
            host.context->join(rank, descriptors,
                               std::vector{hosts[0].context->presence_offset(), hosts[1].context->presence_offset()},
                               measured(true), {}, {}, {}, std::vector{1 - rank}, host.mirrors->bell());
            host.mirrors->join(host.context);
            host.add();
        }
    }
    Host &operator[](int rank) { return hosts[static_cast<std::size_t>(rank)]; }
    Endpoint endpoint(int rank) {
        return {hosts[static_cast<std::size_t>(rank)].arena->mapping()->base() + (*this)[rank].offset, 2};
    }
    ControlPage &page(int rank) { return endpoint(rank).control(); }
    /// The page of rank 0, as host 1 sees it.
    ControlPage &mirrored() {
        return *reinterpret_cast<ControlPage *>((*this)[1].context->at(0).mapping->base() + (*this)[0].offset);
    }
    /// What rank 0 knows of a communicator of both.
    Members members(std::uint64_t name) {
        const Context &context = *(*this)[0].context;
        ControlPage &other = *reinterpret_cast<ControlPage *>(context.at(1).mapping->base() + (*this)[1].offset);
        return {{{0, true, *context.at(0).presence, page(0), endpoint(0).aborted_calls()},
                 {1, false, *context.at(1).presence, other, {}, 0, "elsewhere"}},
                0,
                Spanning{.name = name, .bell = context.leader_bell(), .leader = context.leader()}};
    }
    void tell(bool thorough = false) { (*this)[1].mirrors->apply((*this)[0].mirrors->collect(thorough), false); }
};

std::vector<std::byte> reason_for(std::uint64_t name, const std::string &text) {
    AbortRecord record{};
    record.cause = static_cast<std::int32_t>(Cause::aborted);
    record.rank = 1;
    std::ranges::copy(text, record.text.begin());
    return encode_reason(name, record, std::array<Fingerprint, 2>{});
}

Failure own_reason() { return Failure(Cause::aborted, 0, "own"); }

} // namespace

TEST(what_a_rank_writes_is_seen_on_other_hosts) {
    TwoHosts world;
    CHECK(world[0].mirrors->collect(false).empty(), "no page is of a communicator on several hosts");
    world.page(0).name.store(5);
    world.page(1).name.store(5);
    world.tell();
    CHECK(world.mirrored().name.load() == 5 && world.page(1).alarm.load() == 0);
    world.page(0).last_call.store(3);
    world.tell();
    CHECK(world.mirrored().last_call.load() == 3 && world.page(1).alarm.load() == 0, "no wait ends by it");
    world.page(0).gave_up.store(3);
    world.tell();
    CHECK(world.mirrored().gave_up.load() == 3 && world.page(1).alarm.load() == 1);
    CHECK(world[0].mirrors->collect(false).empty());
}

TEST(of_the_next_communicator_on_one_host_others_hear_only_that_there_is_one) {
    TwoHosts world;
    world.page(0).name.store(5);
    world.tell();
    world.page(0).renew();
    world.tell();
    CHECK(world.mirrored().generation.load() == 1);
    for (std::uint64_t call : {1U, 2U}) {
        world.page(0).last_call.store(call);
        CHECK(world[0].mirrors->collect(false).empty());
    }
    world.page(0).renew();
    world.page(0).name.store(6);
    world.tell();
    CHECK(world.mirrored().generation.load() == 2 && world.mirrored().name.load() == 6);
}

TEST(very_many_news_are_told_in_parts) {
    TwoHosts world;
    constexpr int num_pages = 250, num_busy = 200;
    std::vector<std::size_t> offsets;
    for (int i = 0; i < num_pages; ++i) {
        offsets.push_back(world[0].add());
        world.page(0).name.store(static_cast<std::uint64_t>(i) + 1);
    }
    const auto make_calls = [&](int num_first) { // on so many pages more of them than fit into one part
        for (const std::size_t offset : std::span(offsets).first(static_cast<std::size_t>(num_first))) {
            world[0].offset = offset;
            ControlPage &page = world.page(0);
            const std::uint64_t last = page.last_call.load() + ControlPage::history;
            for (std::uint64_t call = page.last_call.load() + 1; call <= last; ++call)
                page.note_call({.sequence = call}, nullptr, false);
            page.last_call.store(last);
        }
    };
    make_calls(num_pages);
    for (int round = 0; round < 4; ++round) {
        const auto news = world[0].mirrors->collect(false);
        CHECK(!news.empty() && news.size() < std::size_t{5} << 18, news.size());
        world[1].mirrors->apply(news, false);
        make_calls(num_busy);
    }
    for (const std::size_t offset : offsets) {
        world[0].offset = offset;
        CHECK(world.mirrored().last_call.load() > 0, "the last pages have their turn, too");
    }
}

TEST(whether_a_process_is_stopped_is_asked_where_its_number_counts) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        raise(SIGSTOP);
        _exit(0);
    }
    const std::shared_ptr<void> end(nullptr, [child](void *) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
    });
    int status = 0;
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    for (const bool is_here : {true, false}) {
        TwoHosts world;
        world.page(0).name.store(5);
        world.page(0).process.store(child);
        world.page(0).process_namespace.store(process_namespace() + (is_here ? 0 : 1));
        world.tell(true);
        CHECK(world.mirrored().is_stopped.load() == (is_here ? 1U : 0U), is_here);
    }
}

// What is not believed ------------------------------------------------------------------------------------------------

TEST(news_of_pages_that_are_not_there_are_dropped) {
    TwoHosts world;
    world.page(0).name.store(5);
    const auto news = world[0].mirrors->collect(false);
    constexpr auto big = std::numeric_limits<std::uint64_t>::max();
    const auto told = [&](PageName name) {
        auto wrong = news;
        std::memcpy(wrong.data() + offsetof(NewsHead, page), &name, sizeof name);
        world[1].mirrors->apply(wrong, true);
    };
    for (const std::int64_t rank : {-1L, 1L, 2L, std::numeric_limits<std::int64_t>::min()})
        told({.offset = world[0].offset, .rank = rank});
    for (const std::uint64_t offset : {capacity, capacity - 64, capacity - sizeof(ControlPage) + 64, big, big - 63,
                                       big / 2 + 1, world[0].offset + 1, world[0].offset + 8})
        told({.offset = offset, .rank = 0});
    CHECK(world.mirrored().name.load() == 0);
    told({.offset = world[0].offset, .rank = 0});
    CHECK(world.mirrored().name.load() == 5);
}

TEST(an_arena_that_holds_nothing_is_refused) {
    CHECK(failure_of([] { static_cast<void>(Mirrors({0, 0}).descriptor(1)); })->cause == Cause::internal);
    const auto arena = std::make_shared<Arena>(capacity);
    for (const auto &[size, presence] : {std::pair<std::size_t, std::size_t>{1, 0},
                                         {1, 64},
                                         {capacity, capacity},
                                         {capacity, std::numeric_limits<std::size_t>::max()},
                                         {capacity, 4097}}) {
        const auto context = std::make_shared<Context>(arena);
        Mirrors mirrors({0, size});
        const auto failure = failure_of([&] {
            context->join(0, std::array{arena->descriptor(), mirrors.descriptor(1)},
                          std::array{context->presence_offset(), presence}, measured(true), {}, {}, {}, std::array{1},
                          mirrors.bell());
        });
        CHECK(failure && failure->cause == Cause::internal, size, presence);
    }
    // One page of memory: smaller than a control page.
    TwoHosts world;
    world.page(0).name.store(5);
    const auto news = world[0].mirrors->collect(false);
    Mirrors small({1, 0});
    small.join(world[1].context);
    small.apply(news, true);
}

// Reasons -------------------------------------------------------------------------------------------------------------

TEST(a_reason_is_proposed_once_and_the_decision_is_written) {
    TwoHosts world;
    const Members members = world.members(5);
    CHECK(world[0].mirrors->proposals().empty());
    members.record(own_reason());
    const auto proposals = world[0].mirrors->proposals();
    CHECK(proposals.size() == 1 && communicator_of(proposals[0]) == 5);
    CHECK(world[0].mirrors->proposals().empty(), "it was taken");
    world[0].mirrors->decide(reason_for(5, "another"));
    CHECK(members.recorded_failure()->text == "another" && members.recorded_failure()->rank == 1);
    world[0].mirrors->decide(reason_for(5, "late"));
    CHECK(members.recorded_failure()->text == "another");
}

TEST(without_a_decision_the_own_reason_holds) {
    TwoHosts world;
    const Members members = world.members(5);
    const auto begun = Clock::now();
    CHECK(members.settle(own_reason()).text == "own");
    CHECK(Clock::now() - begun >= 2s);
    world[0].mirrors->decide(reason_for(5, "late"));
    CHECK(members.recorded_failure()->text == "own");
}

TEST(a_decision_waits_for_the_member_that_it_is_for) {
    TwoHosts world;
    world[0].mirrors->decide(reason_for(5, "another"));
    {
        const Members members = world.members(5); // it has come late
        CHECK(!members.recorded_failure());
        world[0].mirrors->collect(false);
        CHECK(members.recorded_failure()->text == "another" && world.page(0).alarm.load() == 1);
    }
    world.page(0).renew();
    const Members members = world.members(6);
    world.page(0).abort.state.store(AbortRecord::writing); // another thread is about to propose a reason
    world[0].mirrors->decide(reason_for(6, "yet another"));
    CHECK(!members.recorded_failure());
    world.page(0).abort.proposed_at.store(Clock::now().time_since_epoch() / 1ns);
    world.page(0).abort.state.store(AbortRecord::proposed);
    world[0].mirrors->collect(false);
    CHECK(members.recorded_failure()->text == "yet another");
}

TEST(a_decision_holds_whatever_its_rank_writes_meanwhile) {
    constexpr int rounds = thread_sanitizer ? 200 : 600;
    TwoHosts world;
    for (int round = 1; round <= rounds; ++round) {
        world.page(0).renew();
        const Members members = world.members(static_cast<std::uint64_t>(round));
        std::atomic<int> num_ready{0};
        const auto meet = [&] {
            for (num_ready.fetch_add(1); num_ready.load() < 2;) continue;
        };
        std::thread leader([&] {
            meet();
            for (int turn = 0; turn < round % 13 * 20; ++turn) relax();
            world[0].mirrors->decide(reason_for(static_cast<std::uint64_t>(round), "another"));
            // It looks again as soon as the rank has told of its own.
            for (const auto until = Clock::now() + 1s; Clock::now() < until;) {
                if (world.page(0).abort.state.load() == AbortRecord::ready) break;
                world[0].mirrors->collect(false);
            }
        });
        meet();
        for (int turn = 0; turn < round % 17 * 20; ++turn) relax();
        const Failure found = members.settle(own_reason());
        leader.join();
        CHECK(found.text == "another" && found.rank == 1, "round", round, found.text);
        CHECK(members.recorded_failure()->text == "another");
    }
}

TEST(a_decision_does_not_fall_upon_the_next_communicator) {
    TwoHosts world;
    world.page(0).num_members.store(2);
    std::atomic<std::uint64_t> current{0}, num_looks{0};
    std::atomic<bool> is_over{false};
    std::thread leader([&] {
        while (!is_over.load()) {
            world[0].mirrors->decide(reason_for(current.load(), "of the last one"));
            world[0].mirrors->collect(false);
            num_looks.fetch_add(1);
        }
    });
    std::uint64_t wrong = 0;
    const auto until = Clock::now() + 1s; // the two meet often, or seldom where other processes take the cores
    for (std::uint64_t round = 1; Clock::now() < until; ++round) {
        for (const std::uint64_t seen = num_looks.load(); num_looks.load() == seen;)
            std::this_thread::yield(); // it is not asleep
        world.page(0).num_members.store(2, std::memory_order_relaxed);
        world.page(0).name.store(2 * round);
        current.store(2 * round);
        for (unsigned turn = 0; turn < round % 11 * 10; ++turn) relax();
        world.page(0).renew();
        world.page(0).name.store(2 * round + 1); // of which no decision is made
        for (unsigned turn = 0; turn < 200; ++turn) relax();
        if (world.page(0).abort.state.load() == AbortRecord::ready) wrong = round;
        world.page(0).renew();
    }
    is_over.store(true);
    leader.join();
    CHECK(wrong == 0, "in round", wrong);
}

TEST(a_page_with_a_wrong_number_of_members_is_read_inside_of_its_arena) {
    TwoHosts world;
    const Members members = world.members(5);
    members.record(own_reason());
    for (const std::int32_t number :
         {0, -1, 1024, 1025, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()}) {
        world[0].mirrors->join(world[0].context);
        world.page(0).num_members.store(number);
        world.page(0).generation.fetch_add(1); // so that it is proposed once more
        const auto proposals = world[0].mirrors->proposals();
        CHECK(proposals.size() == 1 && communicator_of(proposals[0]) == 5, number);
    }
}

TEST(deaths_are_found_once) {
    World world(3, {.hosts = {2, 1}});
    Mirrors mirrors({0, 0, capacity});
    mirrors.join(world[0].context);
    CHECK(mirrors.deaths().empty() && mirrors.num_present() == 1);
    world[0].context->report_death(1, false);
    CHECK(mirrors.deaths() == std::vector{1} && mirrors.deaths().empty() && mirrors.num_present() == 0);
}
