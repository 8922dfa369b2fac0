// A paced link: a message on its way is hidden, and a waiting rank knows how long it takes.

#include "check.h"
#include "world.h"

#include <array>
#include <cerrno>
#include <cstring>

using namespace hocket;
using namespace hocket::test;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t tag = 7;
constexpr auto nothing_known = std::chrono::nanoseconds::max();
constexpr auto hours = 10h; // longer than any test

Transport &paced(World &world, int rank) { return world[rank].communicator().carrier(); }

std::size_t publish(World &world, int from, std::vector<int> to, std::size_t num_bytes) {
    const std::vector<std::byte> bytes(num_bytes, std::byte{5});
    return paced(world, from).post(to, bytes, tag).num_bytes;
}

/// When message `number`, from 0, of a channel arrives, as its writer has written it.
std::atomic<Clock::rep> &arrival(World &world, int from, int to, int number = 0) {
    const auto &endpoint = world[from].communicator().transport().endpoint(from);
    return endpoint.arrivals(Lane::collectives, to)[static_cast<std::size_t>(number)];
}

void arrive_now(World &world, int from, int to, int number = 0) { arrival(world, from, to, number).store(0); }

std::chrono::nanoseconds between(const std::atomic<Clock::rep> &earlier, const std::atomic<Clock::rep> &later) {
    return Clock::duration(later.load() - earlier.load());
}

} // namespace

TEST(paced_message_is_hidden_until_it_arrives) {
    World world(2, {.bytes_per_second = 1e9, .latency = hours});
    const auto before = Clock::now();
    CHECK(paced(world, 0).until_arrival(before) == nothing_known);
    CHECK(publish(world, 1, {0}, 1000) == 1000 && paced(world, 1).posted(0) == 1);
    CHECK(paced(world, 0).view(1).bytes.empty() && paced(world, 1).released(0) == 0);
    CHECK(paced(world, 0).is_coming(1) && !paced(world, 1).is_coming(0));
    const auto left = paced(world, 0).until_arrival(before);
    CHECK(left > 0ns && left <= hours + 1us);
    arrive_now(world, 1, 0);
    const View view = paced(world, 0).view(1);
    CHECK(view.bytes.size() == 1000 && view.bytes[999] == std::byte{5} && view.tag == tag);
    CHECK(!paced(world, 0).is_coming(1), "it is here");
    CHECK(paced(world, 0).until_arrival(before) == nothing_known, "it had arrived before");
    paced(world, 0).release(1, 1000);
    CHECK(paced(world, 1).released(0) == 1);
}

TEST(paced_message_of_two_lines_arrives_as_one) {
    World world(2, {.bytes_per_second = 1e9, .latency = hours});
    CHECK(publish(world, 1, {0}, 96) == 96 && paced(world, 1).posted(0) == 2);
    CHECK(arrival(world, 1, 0, 1) == 0 && paced(world, 0).view(1).bytes.empty());
    arrive_now(world, 1, 0);
    for (int line = 0; line < 2; ++line) {
        CHECK(paced(world, 0).view(1).bytes.size() == 48, line);
        paced(world, 0).release(1, 48);
    }
    CHECK(paced(world, 1).released(0) == 2);
}

TEST(paced_copy_asks_the_system_for_what_a_false_peer_shows) {
    World world(2, {.as_processes = true, .may_attach = true, .bytes_per_second = 1e9, .latency = hours});
    CHECK(publish(world, 1, {0}, 1000) == 1000);
    Endpoint::Line &line = world[1].communicator().transport().endpoint(1).ring(Lane::collectives, 0)[0];
    line.tier = Endpoint::Tier::attach;                                       // which is not possible over a link
    line.elsewhere.address = reinterpret_cast<const std::byte *>(cache_line); // where no process has memory
    arrive_now(world, 1, 0);
    CHECK(paced(world, 0).view(1).attached);
    std::array<std::byte, 1000> found{};
    const auto failure = failure_of([&] { paced(world, 0).copy(1, found.data(), found.size()); });
    CHECK(failure && failure->cause == Cause::resource && failure->error_number == EFAULT);
}

TEST(paced_wait_is_as_long_as_the_first_arrival_that_was_hidden) {
    World world(3, {.bytes_per_second = 1e9, .latency = hours});
    const auto before = Clock::now();
    publish(world, 1, {0}, 8);
    publish(world, 2, {0}, 8);
    const auto soon = Clock::now() + 1h;
    arrival(world, 2, 0).store(soon.time_since_epoch().count());
    CHECK(paced(world, 0).until_arrival(before) <= 1h && paced(world, 0).until_arrival(soon) > 1h);
    arrival(world, 2, 0).store((before + 1ns).time_since_epoch().count());
    CHECK(paced(world, 0).until_arrival(before) == 0ns, "it has come since: look at once");
}

TEST(paced_link_sends_one_message_after_another) {
    World world(3, {.num_communicators = 2, .bytes_per_second = 1e3, .latency = hours});
    CHECK(publish(world, 0, {1, 2}, 5000) == 5000, "to two peers, one after the other");
    CHECK(publish(world, 0, {1}, piece_bytes + 1) == piece_bytes);
    CHECK(between(arrival(world, 0, 1), arrival(world, 0, 2)) == 5s);
    CHECK(between(arrival(world, 0, 2), arrival(world, 0, 1, 1)) == std::chrono::milliseconds(piece_bytes));
    // Another communicator shares it.
    Communicator &other = *world[0].communicators[1];
    const int peer = 2;
    const std::array<std::byte, 1000> bytes{};
    other.carrier().post(std::span(&peer, 1), bytes, tag);
    const auto &its = other.transport().endpoint(0).arrivals(Lane::collectives, 2)[0];
    CHECK(between(arrival(world, 0, 1, 1), its) == 1s);
    // Messages of other ranks do not.
    publish(world, 1, {2}, 1000);
    CHECK(arrival(world, 1, 2).load() < its.load());
}

TEST(paced_channel_that_is_full_leaves_link_and_times_alone) {
    World world(2, {.bytes_per_second = 1e6, .latency = hours});
    for (std::size_t i = 0; i < largest_ring; ++i) CHECK(publish(world, 0, {1}, 40) == 40);
    const auto first = arrival(world, 0, 1).load();
    CHECK(publish(world, 0, {1}, 40) == 0 && arrival(world, 0, 1).load() == first);
    arrive_now(world, 0, 1);
    CHECK(paced(world, 1).view(0).bytes.size() == 40);
    paced(world, 1).release(0, 40);
    CHECK(publish(world, 0, {1}, 40) == 40);
    CHECK(between(arrival(world, 0, 1, largest_ring - 1), arrival(world, 0, 1, 0)) == 40us,
          "in the place of the first");
}

TEST(paced_link_that_is_idle_owes_nothing) {
    World world(2, {.bytes_per_second = 1e6, .latency = 1ms});
    const auto before = Clock::now();
    publish(world, 0, {1}, 1000);
    const Clock::time_point arrives{Clock::duration(arrival(world, 0, 1).load())};
    CHECK(arrives >= before + 2ms && arrives <= Clock::now() + 2ms);
}

TEST(paced_calls_give_the_same_bits_in_any_memory) {
    for (const bool as_processes : {false, true}) {
        for (const int num_ranks : {2, 3, 5}) {
            World world(num_ranks, {.as_processes = as_processes, .bytes_per_second = 1e9, .latency = 5us});
            for (const char *algorithm : {"ring", "halving_doubling"}) {
                const Fixture &plans = fixture("all_reduce", algorithm, num_ranks);
                world.run([&](Rank &rank) {
                    for (const Case &run : plans.cases) {
                        for (const Memory memory : {Memory::owned, Memory::registered}) {
                            const Operands operands(plans, run, rank, memory, memory);
                            rank.communicator().run(operands.call(), do_nothing);
                            operands.check(plans.name().c_str());
                        }
                    }
                });
            }
        }
    }
}

TEST(paced_messages_of_all_sizes_arrive) {
    World world(2, {.bytes_per_second = 1e9, .latency = 20us});
    world.run([&](Rank &rank) {
        for (const std::size_t num_bytes : {std::size_t{8}, std::size_t{3000}, std::size_t{100'000}, 9 * piece_bytes}) {
            std::vector<std::byte> sent(num_bytes, static_cast<std::byte>(rank.rank + 1)), found(num_bytes);
            const int peer = 1 - rank.rank;
            const std::array<Message, 2> both{
                Message{.sends = true, .peer = peer, .tag = 3, .data = sent.data(), .num_bytes = num_bytes},
                Message{.sends = false, .peer = peer, .tag = 3, .data = found.data(), .num_bytes = num_bytes}};
            rank.communicator().messages().run(both, patience, do_nothing);
            CHECK(found == std::vector<std::byte>(num_bytes, static_cast<std::byte>(peer + 1)));
        }
    });
}
