// Slots that two ranks hand to each other: a rank writes its next message to the slot in which it has read one.

#include "handing.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <random>
#include <set>
#include <thread>

using namespace hocket;
using namespace hocket::test;

TEST(handing_lets_each_write_where_it_has_just_read) {
    World world(2, {.spin = true, .as_processes = true});
    greet(world);
    const Endpoint::Line &first = send(world, 0, 1, piece_bytes);
    CHECK(first.tier == Tier::handed);
    const std::uint64_t place = first.elsewhere.offset;
    receive(world, 1, 0, piece_bytes);
    for (std::size_t i = 0; i < 50; ++i) {
        const Endpoint::Line &answer = send(world, 1, 0, 100 + i, i);
        CHECK(answer.tier == Tier::handed_back && answer.elsewhere.offset == place, i);
        receive(world, 0, 1, 100 + i, i);
        const Endpoint::Line &next = send(world, 0, 1, 5000 + i, i);
        CHECK(next.tier == Tier::handed && next.elsewhere.offset == place, i);
        receive(world, 1, 0, 5000 + i, i);
    }
}

TEST(handing_is_for_those_that_answer_with_slots) {
    World world(2, {.spin = true, .as_processes = true});
    for (int i = 0; i < 50; ++i) {
        CHECK(send(world, 0, 1).tier == Tier::kept, i);
        receive(world, 1, 0);
        CHECK(send(world, 1, 0, 8).tier == Tier::in_line, i);
        receive(world, 0, 1, 8);
    }
}

TEST(handing_needs_answers_that_could_have_been_handed) {
    World world(3, {.spin = true, .as_processes = true});
    const std::array both{0, 2};
    const auto data = counted(1000, 0);
    const Buffer lent(world[1].arena, Memory::registered, 5000);
    std::ranges::fill(std::span(lent.data(), 5000), std::byte{1});
    for (int i = 0; i < 5; ++i) {
        CHECK(send(world, 0, 1).tier == Tier::kept, i);
        receive(world, 1, 0);
        ShmTransport &peer = transport_of(world, 1);
        if (i == 0) CHECK(peer.post(both, data, tag).num_bytes == 1000);
        if (i == 1) CHECK(send(world, 1, 0, piece_bytes / 2 + 1).tier == Tier::arena);
        if (i == 2) CHECK(peer.post(std::span(both).first(1), lent.bytes(), tag, {.way = Way::lend}).lent);
        if (i == 3) CHECK(send(world, 1, 0, 8).tier == Tier::in_line);
        if (i < 4) transport_of(world, 0).release(1, transport_of(world, 0).view(1).bytes.size());
    }
}

TEST(handing_goes_along_with_messages_that_have_a_head) {
    World world(2, {.spin = true, .as_processes = true});
    const auto head = counted(24, 7), data = counted(piece_bytes, 0);
    for (int i = 0; i < 20; ++i) {
        for (const int from : {0, 1}) {
            ShmTransport &sender = transport_of(world, from), &reader = transport_of(world, 1 - from);
            const std::uint64_t number = sender.posted(1 - from);
            CHECK(sender.post(std::array{1 - from}, data, tag, {.head = head}).num_bytes == data.size());
            const Tier tier = sender.endpoint(from).ring(Lane::collectives, 1 - from)[number % largest_ring].tier;
            const Tier next = from == 1 ? Tier::handed : Tier::handed_back;
            CHECK(tier == (i == 0 && from == 0 ? Tier::kept : next), i, from);
            const View view = reader.view(from);
            CHECK(std::ranges::equal(view.bytes, head));
            CHECK(std::ranges::equal(view.behind, tier == Tier::kept ? Bytes() : Bytes(data)), i, from);
            if (i % 2 == 1) { // both are read at once, possibly after the head
                reader.release(from, 5);
                CHECK(std::ranges::equal(reader.view(from).bytes, std::span(head).subspan(5)));
                CHECK(std::ranges::equal(reader.view(from).behind, data));
                reader.release(from, head.size() - 5 + data.size());
                CHECK(reader.view(from).bytes.empty() && sender.released(1 - from) == number + 1);
                continue;
            }
            reader.release(from, head.size());
            for (const std::size_t part : {std::size_t{100}, data.size() - 100}) { // its slot only when all is read
                const Bytes rest = reader.view(from).bytes;
                CHECK(std::ranges::equal(rest, std::span(data).last(rest.size())) && rest.size() >= part);
                reader.release(from, part);
            }
        }
    }
}

/// At once; if a message is still being written, its first part at first.
TEST(handing_goes_along_with_messages_that_are_matched) {
    World world(2, {.spin = true, .as_processes = true});
    Matcher matchers[]{{transport_of(world, 0), {}, 0, 2}, {transport_of(world, 1), {}, 1, 2}};
    int num_handed = 0;
    for (const std::size_t size : {100UL, 1000UL, cell_bytes + 5, 60'000UL}) {
        for (int i = 0; i < 10; ++i) {
            const int from = i % 2, to = 1 - from;
            auto data = counted(size, static_cast<std::size_t>(i));
            std::vector<std::byte> found(size);
            Exchange send({.sends = true, .peer = to, .tag = 7, .data = data.data(), .num_bytes = size});
            Exchange receive({.peer = from, .data = found.data(), .num_bytes = size});
            ShmTransport &sender = transport_of(world, from);
            const std::uint64_t number = sender.posted(to);
            CHECK(matchers[from].send_at_once(send) && send.done, size);
            Endpoint::Line &line = sender.endpoint(from).ring(Lane::collectives, to)[number % largest_ring];
            num_handed += line.tier >= Tier::handed;
            const bool is_coming = size > cell_bytes && i > 5;
            if (is_coming) line.num_cells = static_cast<std::uint16_t>(i % 3); // one, two or none
            CHECK(matchers[to].may_receive_at_once(receive) && matchers[to].receive_at_once(receive), size);
            if (is_coming && i % 3 * cell_bytes < size) {
                CHECK(!receive.done, i);
                line.num_cells = Endpoint::Line::all_cells;
                matchers[to].receive_on(receive);
            }
            CHECK(receive.done && found == data && sender.released(to) == number + 1, size, i);
        }
    }
    CHECK(num_handed > 30, num_handed);
}

TEST(handing_goes_on_with_slots_that_are_kept_when_none_is_here) {
    for (const bool spin : {true, false}) {
        World world(2, {.spin = spin, .as_processes = true});
        const std::size_t most = spin ? 3 : 1; // one is enough if ranks share cores
        std::set<std::uint64_t> places;
        for (std::size_t i = 0; i < most + 2; ++i) {
            CHECK(send(world, 0, 1).tier == Tier::kept, i, spin);
            receive(world, 1, 0);
            const Endpoint::Line &line = send(world, 1, 0); // which is not read yet
            CHECK(line.tier == (i < most ? Tier::handed : Tier::kept), i, spin);
            if (i < most) places.insert(line.elsewhere.offset);
        }
        CHECK(places.size() == most, places.size());
        for (std::size_t i = 0; i < most + 2; ++i) receive(world, 0, 1);
        for (std::size_t i = 0; i < most; ++i) { // all of them come back, each once
            const Endpoint::Line &line = send(world, 0, 1);
            CHECK(line.tier == Tier::handed_back && places.erase(line.elsewhere.offset) == 1, i, spin);
        }
        CHECK(send(world, 0, 1).tier == Tier::handed, "the other has sent in slots that it kept");
        CHECK(send(world, 0, 1).tier == Tier::kept, "but nothing since then");
    }
}

TEST(handing_is_waited_for_while_all_slots_are_with_a_peer_that_has_yet_to_read) {
    World world(2, {.spin = true, .as_processes = true});
    const auto is_waited_for = [&] { return transport_of(world, 1).awaits_handed(0, piece_bytes); };
    for (int num_handed = 0; num_handed <= 3; ++num_handed) {
        send(world, 0, 1);
        receive(world, 1, 0);
        CHECK(is_waited_for() == (num_handed == 3), num_handed, "of 3 that may be");
        CHECK(send(world, 1, 0).tier == (num_handed < 3 ? Tier::handed : Tier::kept), num_handed);
    }
    for (const std::size_t size : {2 * Endpoint::inline_bytes, piece_bytes + 1}) {
        CHECK(!transport_of(world, 1).awaits_handed(0, size), "in none:", size);
    }
    for (int i = 0; i < 3; ++i) receive(world, 0, 1);
    CHECK(is_waited_for(), "one is unread, though that was kept");
    receive(world, 0, 1);
    CHECK(!is_waited_for(), "all is read");
    for (int i = 0; i < 4; ++i) { // the last in a slot of the peer
        send(world, 0, 1);
        receive(world, 1, 0);
    }
    CHECK(send(world, 1, 0).tier == Tier::handed_back);
    for (int i = 0; i < 3; ++i) {
        CHECK(!is_waited_for(), i, "one is here");
        CHECK(send(world, 1, 0).tier == Tier::handed, i);
    }
    CHECK(is_waited_for());
}

TEST(handing_is_not_waited_for_once_the_peer_has_given_all_back) {
    World world(2, {.spin = true, .as_processes = true});
    const ShmTransport &sender = transport_of(world, 1);
    for (int i = 0; i < 3; ++i) {
        send(world, 0, 1);
        receive(world, 1, 0);
        CHECK(send(world, 1, 0).tier == Tier::handed, i);
    }
    CHECK(sender.awaits_handed(0, piece_bytes));
    for (int i = 0; i < 3; ++i) receive(world, 0, 1);
    for (int i = 0; i < 16; ++i) { // messages without an answer
        CHECK(send(world, 1, 0).tier == Tier::kept && sender.awaits_handed(0, piece_bytes), i);
        receive(world, 0, 1);
    }
    CHECK(send(world, 1, 0).tier == Tier::kept && !sender.awaits_handed(0, piece_bytes));
}

TEST(handing_gives_each_peer_a_part_of_a_slot) {
    World world(4, {.spin = true, .as_processes = true});
    constexpr std::size_t part = piece_bytes / 3 / cache_line * cache_line;
    std::vector<std::uint64_t> places;
    for (int peer : {1, 2, 3}) {
        greet(world, 0, peer);
        const Endpoint::Line &line = send(world, 0, peer, part);
        CHECK(line.tier == Tier::handed, peer);
        places.push_back(line.elsewhere.offset);
    }
    CHECK(places[1] == places[0] + part && places[2] == places[0] + 2 * part);
    for (int peer : {1, 2, 3}) receive(world, peer, 0, part);
    CHECK(send(world, 1, 0, part + 1).tier == Tier::arena, "it is too long");
    CHECK(send(world, 1, 0, part).tier == Tier::handed_back);
    CHECK(send(world, 2, 3).tier == Tier::kept && send(world, 3, 2).tier == Tier::kept, "another pair");
    for (int i = 0; i < 3; ++i) { // a channel to itself has no other end
        CHECK(send(world, 1, 1).tier == Tier::arena);
        receive(world, 1, 1);
    }
}

TEST(handing_leaves_the_least_of_a_pool_to_all_others) {
    World world(2, {.spin = true, .as_processes = true, .max_slots = 100});
    Context &context = *world[0].context;
    greet(world);
    CHECK(send(world, 0, 1).tier == Tier::handed);
    std::size_t num_shared_out = 1, num_pooled = 0;
    while (context.take_slot_to_share_out()) ++num_shared_out;
    while (context.take_slot()) ++num_pooled;
    CHECK(num_pooled == 7 && num_shared_out + num_pooled == num_slots, num_shared_out, num_pooled);
}

TEST(handing_takes_from_the_pool_what_is_left_of_no_room) {
    World world(2, {.as_processes = true, .max_slots = 100});
    Context &context = *world[0].context;
    std::vector<Context::Slot> pool;
    while (const auto slot = context.take_slot()) pool.push_back(*slot);
    CHECK(pool.size() == num_slots && !context.take_slot_to_share_out(), pool.size());
    for (const Context::Slot &slot : pool) context.return_slot(slot);
    std::set<std::size_t> places;
    while (const auto slot = context.take_slot_to_share_out()) places.insert(*slot);
    CHECK(places.size() == num_slots - 7, places.size());
    while (const auto slot = context.take_slot()) places.insert(slot->offset);
    CHECK(places.size() == num_slots, "none of them twice");
}

TEST(handing_does_without_more_memory) {
    Context context(std::make_shared<Arena>(std::size_t{1} << 20), 100);
    std::size_t num_shared_out = 0;
    while (context.take_slot_to_share_out()) ++num_shared_out;
    CHECK(num_shared_out > 0 && num_shared_out < 8, num_shared_out);
    CHECK(!context.take_slot() && !context.take_slot_to_share_out());
}

TEST(handing_of_one_communicator_leaves_others_to_go_without) {
    constexpr std::size_t num_communicators = 10, num_shared_out = num_slots - 7;
    World world(2, {.num_communicators = static_cast<int>(num_communicators), .spin = true, .as_processes = true});
    std::set<std::size_t> with;
    for (int i = 0; i < 20; ++i) {
        for (std::size_t which = 0; which < num_communicators; ++which) {
            for (const int from : {0, 1}) { // both have sent before either reads
                ShmTransport &sender = world[from].communicators[which]->transport();
                const int to = 1 - from;
                CHECK(sender.post(std::span(&to, 1), counted(1000, which), tag).num_bytes == 1000);
                const Endpoint::Line *const ring = sender.endpoint(from).ring(Lane::collectives, to);
                if (ring[(sender.posted(to) - 1) % largest_ring].tier == Tier::handed) with.insert(which);
            }
            for (const int at : {0, 1}) {
                ShmTransport &reader = world[at].communicators[which]->transport();
                CHECK(std::ranges::equal(reader.view(1 - at).bytes, counted(1000, which)), i, which);
                reader.release(1 - at, 1000);
            }
        }
    }
    CHECK(with.size() == num_shared_out, with.size());
}

TEST(handing_ends_when_both_have_left) {
    for (const bool is_away : {true, false}) {
        World world(2, {.num_communicators = 2, .spin = true, .as_processes = true, .max_slots = 100});
        Context &context = *world[0].context;
        greet(world);
        CHECK(send(world, 0, 1).tier == Tier::handed);
        receive(world, 1, 0);
        if (!is_away) {
            CHECK(send(world, 1, 0).tier == Tier::handed_back);
            receive(world, 0, 1);
        }
        world[0].communicators.front().reset();
        std::size_t num_pooled = 0;
        while (context.take_slot()) ++num_pooled;
        CHECK(num_pooled == (is_away ? num_slots - 1 : num_slots), num_pooled, "the other may still write there");
        world[1].communicators.front().reset();
        CHECK(context.take_slot().has_value() == is_away && !context.take_slot());
    }
}

TEST(handing_that_has_ended_leaves_the_pool_as_it_was) {
    constexpr std::size_t num_communicators = 12;
    World world(2, {.num_communicators = static_cast<int>(num_communicators) + 1, .spin = true, .as_processes = true});
    Context &context = *world[0].context;
    for (std::size_t i = 0; i < num_communicators; ++i) {
        ShmTransport &one = world[0].communicators[i]->transport(), &other = world[1].communicators[i]->transport();
        const std::array zero{0}, peer{1};
        const auto data = counted(1000, i);
        CHECK(other.post(zero, data, tag).num_bytes == data.size());
        one.release(1, one.view(1).bytes.size());
        CHECK(one.post(peer, data, tag).num_bytes == data.size());
        CHECK(one.endpoint(0).ring(Lane::collectives, 1)[0].tier == Tier::handed, i);
        world[0].communicators[i].reset(); // while the other has the slot
        if (i % 2 == 1) {                  // two are away at a time, at most
            world[1].communicators[i - 1].reset();
            world[1].communicators[i].reset();
        }
    }
    std::size_t num_pooled = 0, num_shared_out = 0;
    while (context.take_slot()) ++num_pooled;
    while (context.take_slot_to_share_out()) ++num_shared_out;
    CHECK(num_pooled == 8 && num_shared_out == num_slots - 8, num_pooled,
          num_shared_out); // of the 8 of a World
}

TEST(handing_trusts_no_word_of_a_peer) {
    const auto refuses = [](bool is_back, const std::function<void(Endpoint::Line &)> &falsify) {
        World world(2, {.spin = true, .as_processes = true});
        greet(world);
        Endpoint::Line *line = &send(world, 0, 1);
        if (is_back) {
            receive(world, 1, 0);
            line = &send(world, 1, 0);
        }
        CHECK(line->tier == (is_back ? Tier::handed_back : Tier::handed));
        falsify(*line);
        const int reader = is_back ? 0 : 1;
        return failure_of([&] { transport_of(world, reader).view(1 - reader); }).has_value();
    };
    for (const bool is_back : {true, false}) {
        CHECK(!refuses(is_back, [](Endpoint::Line &) {}));
        CHECK(refuses(is_back, [](Endpoint::Line &line) { line.elsewhere.offset = std::uint64_t{1} << 60; }), is_back);
        CHECK(refuses(is_back, [](Endpoint::Line &line) { line.elsewhere.offset = ~std::uint64_t{0}; }), is_back);
        CHECK(refuses(is_back, [](Endpoint::Line &line) { line.num_bytes = piece_bytes + 1; }), is_back);
        CHECK(refuses(is_back, [](Endpoint::Line &line) { line.elsewhere.offset += 1; }), is_back);
    }
    CHECK(refuses(true, [](Endpoint::Line &line) { line.elsewhere.offset += cache_line; }), "it was not given that");
    CHECK(refuses(false, [](Endpoint::Line &line) { line.tier = Tier::handed_back; }), "nor anything yet");
    for (const Tier other : {Tier::attach, Tier::kept, Tier::arena}) { // after the head was seen
        World world(2, {.spin = true, .as_processes = true, .may_attach = true});
        greet(world);
        ShmTransport &sender = transport_of(world, 0), &reader = transport_of(world, 1);
        const std::uint64_t number = sender.posted(1);
        CHECK(sender.post(std::array{1}, counted(1000, 0), tag, {.head = counted(24, 7)}).num_bytes == 1000);
        CHECK(reader.view(0).behind.size() == 1000);
        Endpoint::Line &line = sender.endpoint(0).ring(Lane::collectives, 1)[number % largest_ring];
        line.tier = other;
        line.elsewhere.offset = page_bytes();
        CHECK(reader.view(0).bytes.size() == 24 && reader.view(0).behind.empty(), static_cast<int>(other));
    }

    World world(2, {.spin = true, .as_processes = true});
    greet(world);
    const std::uint64_t place = send(world, 0, 1).elsewhere.offset;
    receive(world, 1, 0);
    const auto is_refused = [&](Endpoint::Line &line, std::uint64_t offset) {
        line.tier = Tier::handed;
        line.elsewhere.offset = offset;
        return failure_of([&] { transport_of(world, 1).view(0); }).has_value();
    };
    for (std::size_t i = 1; i <= 3; ++i) { // it has one already
        Endpoint::Line &line = send(world, 0, 1);
        CHECK(is_refused(line, place), "it has that");
        CHECK(is_refused(line, world[0].arena->mapping()->num_bytes() - page_bytes()), "beyond the end");
        CHECK(is_refused(line, place + i * piece_bytes) == (i == 3), i, "more than there may be");
        if (i < 3) transport_of(world, 1).release(0, 1000);
    }
}

TEST(handing_both_ways_at_a_time_mixes_nothing_up) {
    constexpr std::size_t num_messages = 300, longest = 70'000; // with three ranks more than a part
    struct Progress {
        std::size_t num_sent = 0, num_read = 0, num_bytes = 0; // of the message that is being read
    };
    const auto message = [](int from, int to, std::size_t number) {
        return counted(number * 7919 % longest + 1, number + static_cast<std::size_t>(3 * from + to) * 50);
    };
    for (const auto &[num_ranks, spin] : {std::pair(2, true), std::pair(2, false), std::pair(3, true)}) {
        World world(num_ranks, {.spin = spin, .as_processes = true});
        std::atomic<int> num_handed{0};
        world.run([&](Rank &rank) {
            ShmTransport &transport = transport_of(world, rank.rank);
            std::mt19937 random(static_cast<unsigned>(rank.rank));
            std::vector<Progress> with(static_cast<std::size_t>(num_ranks));
            with[static_cast<std::size_t>(rank.rank)] = {num_messages, num_messages, 0};
            const auto send_one = [&](int peer, Progress &of) {
                const Endpoint::Line *const ring = transport.endpoint(rank.rank).ring(Lane::collectives, peer);
                const Endpoint::Line &line = ring[transport.posted(peer) % largest_ring];
                const auto data = message(rank.rank, peer, of.num_sent);
                if (transport.post(std::span(&peer, 1), data, tag).num_bytes == 0) return;
                ++of.num_sent;
                num_handed += line.tier == Tier::handed || line.tier == Tier::handed_back;
            };
            const auto read_some = [&](int peer, Progress &of) {
                const Bytes found = transport.view(peer).bytes;
                if (found.empty()) return std::this_thread::yield();
                const auto expected = message(peer, rank.rank, of.num_read);
                CHECK(std::ranges::equal(found, std::span(expected).subspan(of.num_bytes, found.size())), of.num_read);
                transport.release(peer, found.size());
                if ((of.num_bytes += found.size()) < expected.size()) return;
                ++of.num_read;
                of.num_bytes = 0;
            };
            const auto is_done = [&](const Progress &of) {
                return of.num_sent == num_messages && of.num_read == num_messages;
            };
            while (!std::ranges::all_of(with, is_done)) {
                CHECK(!world.has_failed());
                const int peer = static_cast<int>(random() % static_cast<unsigned>(num_ranks));
                Progress &of = with[static_cast<std::size_t>(peer)];
                if (of.num_sent < num_messages && random() % 2 == 0) send_one(peer, of);
                else if (of.num_read < num_messages) read_some(peer, of);
            }
        });
        CHECK(num_handed > num_ranks * 50, num_handed.load(), num_ranks);
    }
}
