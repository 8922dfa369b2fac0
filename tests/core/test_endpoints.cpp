// Endpoints are used again after all members of the communicator have left: never earlier, and with nothing left over.

#include "check.h"
#include "world.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <set>

using namespace hocket;
using namespace hocket::test;

namespace {

std::size_t add_endpoint(Rank &rank, int num_members) {
    return rank.context->add_endpoint(Endpoint::committed_bytes(num_members), Endpoint::reserved_bytes(num_members));
}

ControlPage &page_at(const Rank &rank, std::size_t offset) {
    return *reinterpret_cast<ControlPage *>(rank.arena->mapping()->base() + offset);
}

void all_reduce(Communicator &communicator, Rank &rank, std::size_t count) {
    const int num_ranks = communicator.size();
    const Fixture &plans = fixture("all_reduce", "ring", num_ranks);
    std::vector<std::int64_t> input(count, communicator.rank() + 1), output(count);
    communicator.run(call_of(plans, communicator.rank(), Dtype::int64, Op::sum, count,
                             reinterpret_cast<const std::byte *>(input.data()),
                             reinterpret_cast<std::byte *>(output.data())),
                     do_nothing);
    CHECK(std::ranges::count(output, num_ranks * (num_ranks + 1) / 2) == static_cast<std::ptrdiff_t>(count), "rank",
          rank.rank);
}

/// A message to the next rank and one from the previous rank.
void exchange(Communicator &communicator, std::size_t num_bytes) {
    const int rank = communicator.rank(), size = communicator.size();
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    std::vector<std::byte> sent(num_bytes, static_cast<std::byte>(rank + 1)), received(num_bytes);
    const Message messages[] = {
        {.sends = true, .peer = next, .tag = 5, .data = sent.data(), .num_bytes = num_bytes},
        {.peer = before, .tag = 5, .data = received.data(), .num_bytes = num_bytes},
    };
    communicator.messages().run(messages, patience, do_nothing);
    CHECK(std::ranges::count(received, static_cast<std::byte>(before + 1)) == static_cast<std::ptrdiff_t>(num_bytes));
}

/// Opens a communicator of all ranks, which call this together; `offsets` is for this opening only.
std::unique_ptr<Communicator> open(World &world, Rank &rank, std::vector<std::size_t> &offsets) {
    offsets[static_cast<std::size_t>(rank.rank)] = add_endpoint(rank, world.size());
    world.meet();
    std::vector<int> members;
    for (int member = 0; member < world.size(); ++member) members.push_back(member);
    return std::make_unique<Communicator>(rank.context, members, rank.rank, offsets, false);
}

/// Whether all that members write to an endpoint is as in a new one; alarms and the bell only grow.
bool is_clean(const Rank &rank, std::size_t offset, int num_members) {
    const std::byte *begin = rank.arena->mapping()->base() + offset;
    return page_at(rank, offset).sleeping.load() == 0 &&
           std::all_of(begin + cache_line, begin + Endpoint::committed_bytes(num_members),
                       [](std::byte byte) { return byte == std::byte{0}; });
}

} // namespace

TEST(endpoint_is_used_again_once_all_members_have_closed) {
    for (bool fails : {false, true}) {
        World world(3);
        world.run([&](Rank &rank) {
            all_reduce(rank.communicator(), rank, 1000);
            exchange(rank.communicator(), 20'000);
        });
        if (fails) world[1].communicator().abort("out of coffee");
        for (int last : {1, 0, 2}) {
            failure_of([&] { world[last].communicator().close(do_nothing); });
            for (int rank = 0; rank < 3 && last != 2; ++rank) {
                CHECK(add_endpoint(world[rank], 3) != world[rank].communicator().transport().own_offset(), rank, last);
            }
        }
        for (int rank : {2, 0, 1}) { // an endpoint that others have taken again counts as left, too
            const std::size_t offset = world[rank].communicator().transport().own_offset();
            CHECK(!is_clean(world[rank], offset, 3), "or this test shows nothing");
            CHECK(add_endpoint(world[rank], 3) == offset, rank);
            CHECK(is_clean(world[rank], offset, 3), rank);
            CHECK(page_at(world[rank], offset).generation.load() == 1);
            CHECK(add_endpoint(world[rank], 3) != offset, "not twice");
        }
    }
}

TEST(endpoint_is_used_again_once_the_others_have_died) {
    World world(3);
    const std::size_t offset = world[0].communicator().transport().own_offset();
    world[0].communicator().close(do_nothing);
    CHECK(add_endpoint(world[0], 3) != offset);
    for (int dead : {1, 2}) {
        auto *presence =
            reinterpret_cast<Presence *>(world[dead].arena->mapping()->base() + world[dead].context->presence_offset());
        presence->state.store(Presence::dead);
        CHECK((add_endpoint(world[0], 3) == offset) == (dead == 2), dead);
    }
}

TEST(what_a_rank_has_left_behind_is_free_once_all_have_gone) {
    World world(3);
    const std::size_t presence = world[0].context->presence_offset();
    world.run([](Rank &rank) { all_reduce(rank.communicator(), rank, 1000); });
    for (int rank : {0, 1, 2}) world[rank].communicator().close(do_nothing);
    for (int last : {0, 2, 1}) {
        CHECK(world[0].arena->allocate(1) != presence, "before", last);
        world[last].communicators.clear();
        world[last].context.reset();
    }
    CHECK(world[0].arena->allocate(1) == presence);
}

TEST(endpoint_that_is_used_again_has_another_epoch) {
    for (const std::uint32_t before : {0U, 255U}) { // of which eight bits travel
        World world(2);
        std::vector<std::size_t> offsets(2);
        std::optional<Failure> heard[2];
        world.run([&](Rank &rank) {
            rank.communicator().close(do_nothing);
            world.meet();
            page_at(rank, rank.communicator().transport().own_offset()).generation.store(before);
            auto next = open(world, rank, offsets);
            CHECK(next->members().generation() == before + 1);
            for (std::size_t count : {10, 20'000}) {
                all_reduce(*next, rank, count);
                exchange(*next, count);
            }
            const std::uint32_t tag = Fingerprint::tag(1, next->members().epoch());
            next->close(do_nothing);
            world.meet();
            next = open(world, rank, offsets);
            auto bytes = counted(50);
            if (rank.rank == 1) { // something that it has sent before comes now
                const int peer = 0;
                ShmTransport late(*rank.context, {0, 1}, 1, offsets, Lane::messages);
                CHECK(late.post({&peer, 1}, bytes, tag).num_bytes == 50);
            }
            world.meet();
            const Message receive{.peer = 1 - rank.rank, .tag = 5, .data = bytes.data(), .num_bytes = bytes.size()};
            heard[rank.rank] = failure_of([&] { next->messages().run({&receive, 1}, patience, do_nothing); });
            next->close(do_nothing);
        });
        for (const auto &failure : heard) {
            CHECK(failure && failure->text.find("left over from an earlier communicator") != std::string::npos);
        }
        CHECK(heard[0]->cause == Cause::internal && heard[1]->cause == Cause::aborted && heard[1]->rank == 0);
    }
}

TEST(endpoint_of_another_size_is_left_alone) {
    World world(2);
    for (int rank : {0, 1}) world[rank].communicator().close(do_nothing);
    const std::size_t offset = world[0].communicator().transport().own_offset();
    CHECK(add_endpoint(world[0], 3) != offset && add_endpoint(world[0], 2) == offset);
}

TEST(endpoint_with_a_stale_alarm_does_no_harm) {
    World world(2);
    world.run([&world](Rank &rank) {
        rank.communicator().close(do_nothing);
        world.meet();
    });
    std::vector<std::size_t> offsets(2);
    std::atomic<bool> done{false};
    std::thread late([&] { // like a rank that learns of a death late, or has just stored that it closed
        while (!done.load()) {
            for (int rank : {0, 1}) {
                page_at(world[rank], world[rank].communicator().transport().own_offset()).raise_alarm();
            }
            std::this_thread::yield();
        }
    });
    std::exception_ptr error;
    try {
        world.run([&](Rank &rank) {
            const auto next = open(world, rank, offsets);
            CHECK(next->transport().own_offset() == rank.communicator().transport().own_offset());
            for (std::size_t i = 0; i < 50; ++i) {
                all_reduce(*next, rank, i % 5 * 20'000);
                exchange(*next, i % 5 * 9000);
            }
            next->close(do_nothing);
        });
    } catch (...) { error = std::current_exception(); }
    done.store(true);
    late.join();
    if (error) std::rethrow_exception(error);
}

TEST(endpoint_is_not_aborted_through_a_communicator_that_has_closed) {
    World world(2);
    std::vector<std::size_t> offsets(2);
    world.run([&](Rank &rank) {
        rank.communicator().close(do_nothing);
        world.meet();
        const auto next = open(world, rank, offsets);
        CHECK(next->transport().own_offset() == rank.communicator().transport().own_offset());
        rank.communicator().abort("of the old one");
        world.meet();
        all_reduce(*next, rank, 10);
        next->close(do_nothing);
    });
}

TEST(endpoints_are_limited_in_number) {
    const std::size_t least = round_up(sizeof(ControlPage), page_bytes());
    Context context(std::make_shared<Arena>(std::size_t{64} << 20));
    std::size_t last = 0;
    for (std::size_t i = 0; i < Presence::max_endpoints; ++i) last = context.add_endpoint(least, least);
    const auto failure = failure_of([&] { context.add_endpoint(least, least); });
    CHECK(failure && failure->cause == Cause::resource && failure->error_number == ENOSPC);
    CHECK(failure->text.find("1024 communicators") != std::string::npos, failure->text);
    context.retire_endpoint(last, [] { return true; }, {});
    CHECK(context.add_endpoint(least, least) == last);
}

TEST(endpoint_is_found_by_all_wherever_memory_has_become_free) {
    const std::size_t least = round_up(sizeof(ControlPage), page_bytes());
    const auto arena = std::make_shared<Arena>(std::size_t{64} << 20);
    const std::size_t first = arena->allocate(least);
    CHECK(first == 0);
    Context context(arena);
    arena->free(first); // as an earlier context of the process does
    const std::size_t offset = context.add_endpoint(least, least);
    CHECK(offset != 0);                     // which is the end of the list by which others find them
    CHECK(arena->allocate(least) == first); // and is lost for nothing
}

TEST(endpoints_of_thousands_of_communicators) {
    // Four at a time, used at once by one thread of each rank and closed in another order on each. Every tenth time one
    // of them fails first.
    constexpr int at_once = 4;
    for (int num_ranks : {2, 3}) {
        const int rounds = 250;
        World world(num_ranks, {.as_processes = num_ranks == 3});
        const auto size = static_cast<std::size_t>(num_ranks);
        std::vector<std::vector<std::size_t>> offsets(at_once * rounds, std::vector<std::size_t>(size));
        world.run([&](Rank &rank) {
            std::mt19937 random(static_cast<unsigned>(rank.rank));
            std::set<std::size_t> used;
            for (int round = 0; round < rounds; ++round) {
                std::vector<std::unique_ptr<Communicator>> communicators;
                for (int i = 0; i < at_once; ++i) {
                    auto &own = offsets[static_cast<std::size_t>(round * at_once + i)];
                    communicators.push_back(open(world, rank, own));
                    used.insert(own[static_cast<std::size_t>(rank.rank)]);
                }
                for (int i = 0; i < at_once; ++i) {
                    Communicator &communicator = *communicators[static_cast<std::size_t>(i)];
                    if ((round + i) % 3 > 0) all_reduce(communicator, rank, (round + i) % 20 == 7 ? 30'000 : 30);
                    if ((round + i) % 4 > 0) exchange(communicator, (round + i) % 20 == 9 ? 200'000 : 300);
                }
                const bool fails = round % 10 == 9;
                if (fails && round / 10 % num_ranks == rank.rank) communicators[1]->abort("any reason");
                if (fails) world.meet();
                std::vector<std::size_t> order{0, 1, 2, 3};
                std::ranges::shuffle(order, random);
                for (const std::size_t which : order) {
                    const auto failure = failure_of([&] { communicators[which]->close(do_nothing); });
                    CHECK(failure.has_value() == (fails && which == 1), failure ? failure->text : "no failure");
                    if (random() % 2 == 0) communicators[which].reset();
                }
            }
            // A rank that is one opening ahead finds the others' communicator of the last round still open.
            CHECK(used.size() <= 2 * at_once + 1, used.size());
        });
    }
}
