// Slots that were handed for answers go back if there are no answers.

#include "handing.h"

#include <array>
#include <atomic>
#include <thread>

using namespace hocket;
using namespace hocket::test;

namespace {
/// The number of slots that rank 1 has given back to rank 0 without a message.
std::atomic<std::uint64_t> &num_given_back(World &world) {
    return transport_of(world, 1).endpoint(1).released(Lane::collectives, 0).num_given_back;
}

/// Rank 0 hands so many slots to rank 1 before rank 1 reads any of the messages.
void hand_out(World &world, int number) {
    int num_sent = 0;
    for (int num_handed = 0; num_handed < number; ++num_sent) {
        CHECK(num_sent < 10);
        send(world, 1, 0);
        receive(world, 0, 1);
        num_handed += send(world, 0, 1).tier == Tier::handed;
    }
    for (int i = 0; i < num_sent; ++i) receive(world, 1, 0);
}
} // namespace

TEST(handing_ends_where_there_are_no_answers) {
    World world(2, {.spin = true, .as_processes = true, .max_slots = 100});
    hand_out(world, 2);
    for (int i = 0; i < 15; ++i) {
        CHECK(send(world, 0, 1).tier == Tier::kept, i);
        receive(world, 1, 0);
    }
    CHECK(num_given_back(world) == 0);
    CHECK(send(world, 0, 1).tier == Tier::kept);
    receive(world, 1, 0);
    CHECK(num_given_back(world) == 2);
    for (int i = 0; i < 2; ++i) { // each takes a slot, and so looks for those that are read
        send(world, 0, 1, piece_bytes);
        if (i == 0) receive(world, 1, 0, piece_bytes);
    }
    CHECK(count_pooled(*world[0].context) == num_slots - 1);
    CHECK(send(world, 1, 0).tier == Tier::handed, "and then it begins again");
    receive(world, 0, 1);
    CHECK(send(world, 0, 1).tier == Tier::handed_back);
}

TEST(handing_goes_on_where_there_are_some_answers) {
    World world(2, {.spin = true, .as_processes = true});
    greet(world);
    for (int i = 0; i < 40; ++i) {
        CHECK(send(world, 0, 1).tier == (i % 10 == 0 ? Tier::handed : Tier::kept), i);
        receive(world, 1, 0);
        if (i % 10 != 9) continue;
        CHECK(send(world, 1, 0).tier == Tier::handed_back, i);
        receive(world, 0, 1);
    }
    CHECK(num_given_back(world) == 0);
}

TEST(handing_has_back_what_it_needs_for_an_answer) {
    World world(2, {.spin = true, .as_processes = true});
    for (int round = 0; round < 4; ++round) { // more slots in turn than there may be at a time
        hand_out(world, 3);
        for (int i = 0; i < 16; ++i) {
            CHECK(send(world, 0, 1).tier == Tier::kept, round, i);
            receive(world, 1, 0);
        }
        CHECK(num_given_back(world) == 3 * static_cast<std::uint64_t>(round + 1));
    }
}

TEST(handing_leaves_own_slots_to_the_pool_where_the_peer_goes_on_alone) {
    World world(2, {.spin = true, .as_processes = true, .max_slots = 100});
    greet(world, 1, 0);
    CHECK(send(world, 1, 0).tier == Tier::handed);
    receive(world, 0, 1);
    CHECK(send(world, 0, 1).tier == Tier::handed_back, "so it is at home");
    receive(world, 1, 0);
    CHECK(count_pooled(*world[1].context) == num_slots - 1);
    for (int i = 0; i < 16; ++i) {
        CHECK(send(world, 0, 1).tier == Tier::kept, i);
        receive(world, 1, 0);
    }
    CHECK(count_pooled(*world[1].context) == num_slots && num_given_back(world) == 0);
}

TEST(handing_has_nothing_back_that_was_not_given) {
    for (const std::uint64_t number : {std::uint64_t{1}, ~std::uint64_t{0}}) {
        World world(2, {.spin = true, .as_processes = true});
        greet(world);
        CHECK(send(world, 0, 1).tier == Tier::handed);
        num_given_back(world) = number;
        greet(world);
        const std::array one{1};
        const auto failure =
            failure_of([&] { transport_of(world, 0).post(one, counted(1000, 0), tag); }); // publish checks
        CHECK(failure && failure->text.find("rank 1 sent a malformed message") != std::string::npos);
    }
}

TEST(handing_takes_nothing_over_that_was_given_back_meanwhile) {
    World world(2, {.spin = true, .as_processes = true});
    greet(world);
    CHECK(send(world, 0, 1).tier == Tier::handed);
    receive(world, 1, 0);
    const Endpoint::Line &line = send(world, 1, 0);
    CHECK(line.tier == Tier::handed_back);
    ShmTransport &reader = transport_of(world, 0);
    CHECK(reader.view(1).bytes.size() == 1000);
    transport_of(world, 1).endpoint(1).released(Lane::collectives, 0).given_back[0] = line.elsewhere.offset;
    num_given_back(world) = 1;
    for (int i = 0; i < 5; ++i) send(world, 0, 1);
    CHECK(failure_of([&] { reader.release(1, 1000); }).has_value(), "it cannot be a message and home");
}

TEST(handing_ends_when_no_peer_has_a_part) {
    World world(3, {.spin = true, .as_processes = true, .max_slots = 100});
    constexpr std::size_t num_slots_of_three = 14;
    Context &context = *world[0].context;
    const std::array both{1, 2};
    const auto publish = [&world, &both](int number) {
        for (int i = 0; i < number; ++i)
            CHECK(transport_of(world, 0).post(both, counted(piece_bytes, 0), tag).num_bytes == piece_bytes);
    };
    const auto read = [&world, &both](int number) {
        for (const int peer : both)
            for (int i = 0; i < number; ++i) receive(world, peer, 0, piece_bytes);
    };
    for (const int peer : both) {
        greet(world, 0, peer);
        CHECK(send(world, 0, peer).tier == Tier::handed);
        receive(world, peer, 0);
    }
    CHECK(count_pooled(context) == num_slots_of_three - 1, "one is shared out");
    for (const bool second_answers : {true, false}) {
        for (int i = 0; i < 4; ++i) { // what both have read counts, too
            publish(4);
            read(4);
            if (!second_answers) continue;
            CHECK(send(world, 2, 0).tier == Tier::handed_back, i);
            receive(world, 0, 2);
            CHECK(send(world, 0, 2).tier == Tier::handed, i);
            receive(world, 2, 0);
        }
        publish(4);
        read(4);
        publish(1); // now it knows that all were read
        CHECK(count_pooled(context) == num_slots_of_three - 1 - (second_answers ? 1 : 0), second_answers);
        read(1);
    }
}

TEST(handing_ends_and_begins_again_between_threads) {
    World world(2, {.spin = true, .as_processes = true});
    const auto message = [](std::size_t number) { return counted(number * 7919 % 40'000 + 100, number); };
    world.run([&](Rank &rank) {
        ShmTransport &transport = transport_of(world, rank.rank);
        const std::array peer{1 - rank.rank};
        const auto give = [&](std::size_t number) {
            const auto data = message(number);
            while (transport.post(peer, data, tag).num_bytes == 0) {
                CHECK(!world.has_failed());
                std::this_thread::yield();
            }
        };
        const auto take = [&](std::size_t number) {
            const auto expected = message(number);
            for (std::size_t done = 0; done < expected.size();) {
                const Bytes found = transport.view(peer[0]).bytes;
                CHECK(!world.has_failed());
                if (found.empty()) std::this_thread::yield();
                const std::size_t now = std::min<std::size_t>(found.size(), 4099); // in parts that end within lines
                CHECK(std::ranges::equal(found.first(now), std::span(expected).subspan(done, now)), number, done);
                if (now > 0) transport.release(peer[0], now);
                done += now;
            }
        };
        for (std::size_t round = 0; round < 10; ++round) {
            for (std::size_t i = 0; i < 8; ++i) { // in both directions
                give(i);
                take(i);
            }
            for (const int giver : {0, 1}) { // and in one direction
                for (std::size_t i = 0; i < 40; ++i) rank.rank == giver ? give(i) : take(i);
            }
        }
    });
    CHECK(num_given_back(world) >= 10, num_given_back(world).load());
}
