// Staging: slots that take turns and come back, and messages that are read while they are written. Messages without a
// slot are in test_lines.cpp.

#include "check.h"
#include "executor/executor.h"
#include "world.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <thread>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr std::uint32_t tag = 7;
constexpr std::size_t cell = cell_bytes;

std::size_t publish(World &world, int from, int to, Bytes bytes) {
    return transport_of(world, from).post(std::span(&to, 1), bytes, tag).num_bytes;
}

/// The line of the first message of the channel, as its writer sees it.
Endpoint::Line &first_line(World &world, int from, int to) {
    return transport_of(world, from).endpoint(from).ring(Lane::collectives, to)[0];
}

} // namespace

TEST(staging_shows_as_much_of_a_slot_as_is_there) {
    World world(2, {.as_processes = true});
    ShmTransport &reader = transport_of(world, 0);
    const auto data = counted(7 * cell + 100);
    CHECK(publish(world, 1, 0, data) == data.size());
    CHECK(reader.view(1).bytes.size() == data.size() && reader.view(1).num_coming == 0);
    auto &num_cells = first_line(world, 1, 0).num_cells;
    num_cells.store(1);
    CHECK(reader.view(1).bytes.size() == cell && reader.view(1).num_coming == data.size() - cell);
    reader.release(1, cell);
    CHECK(reader.view(1).bytes.empty() && reader.released(1) == 0, "the next cell is not there yet");
    num_cells.store(0);
    CHECK(reader.view(1).bytes.empty(), "a peer's word that cannot be");
    std::array<std::byte, 1> found{};
    CHECK(!reader.copy(1, found.data(), 1), "nor is what it has shown before still there");
    num_cells.store(3);
    View view = reader.view(1);
    CHECK(view.bytes.size() == 2 * cell && std::ranges::equal(view.bytes, std::span(data).subspan(cell, 2 * cell)));
    CHECK(transport_of(world, 1).released(0) == 0);
    num_cells.store(100);
    view = reader.view(1);
    CHECK(view.bytes.size() == data.size() - cell && view.num_coming == 0, "never more than was announced");
    reader.release(1, view.bytes.size());
    CHECK(transport_of(world, 1).released(0) == 1 && reader.view(1).bytes.empty());
}

TEST(staging_is_read_while_it_is_written) {
    World world(2, {.as_processes = true});
    world.run([&world](Rank &rank) {
        constexpr int num_messages = 200;
        const int peer = 1 - rank.rank;
        for (int i = 0; i < num_messages; ++i) {
            const std::size_t size = static_cast<std::size_t>(i) * 7919 % piece_bytes + 1;
            const auto data = counted(size, static_cast<std::size_t>(i));
            std::size_t done = 0;
            while (done < size) {
                CHECK(!world.has_failed());
                if (rank.rank == 0) {
                    done += publish(world, 0, peer, std::span(data).subspan(done));
                } else {
                    const View view = transport_of(world, 1).view(peer);
                    const auto expected = std::span(data).subspan(done, view.bytes.size());
                    CHECK(std::ranges::equal(view.bytes, expected), i, done);
                    if (!view.bytes.empty()) transport_of(world, 1).release(peer, view.bytes.size());
                    done += view.bytes.size();
                }
                std::this_thread::yield();
            }
        }
    });
}

TEST(staging_keeps_a_sender_near_its_reader) {
    World world(2, {.as_processes = true, .max_slots = 12});
    const auto large = counted(piece_bytes), small = counted(1000);
    int num_large = 0;
    while (publish(world, 1, 0, large) > 0) ++num_large;
    CHECK(num_large == 4, num_large);
    for (int i = 0; i < 20; ++i) CHECK(publish(world, 1, 0, small) == small.size(), "small messages may stay for long");
    ShmTransport &reader = transport_of(world, 0);
    for (int i = 0; i < 4; ++i) {
        reader.release(1, reader.view(1).bytes.size());
        CHECK(publish(world, 1, 0, large) == large.size() && publish(world, 1, 0, large) == 0, i);
    }
}

TEST(staging_lets_a_sender_of_little_go_further_ahead_where_ranks_share_cores) {
    for (const bool spin : {false, true}) {
        World world(2, {.spin = spin, .as_processes = true, .max_slots = 12});
        int num_sent = 0;
        while (publish(world, 1, 0, counted(8192)) > 0) ++num_sent;
        CHECK(num_sent == (spin ? 4 : 8), num_sent);
    }
}

TEST(staging_of_a_pool_takes_turns) {
    constexpr std::size_t num_slots = 3, third = piece_bytes / 3;
    World world(1, {.max_slots = num_slots});
    Context &context = *world[0].context;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < 6 * num_slots; ++i) {
        auto slot = context.take_slot(third);
        CHECK(slot.has_value());
        places.push_back(slot->offset + slot->used);
        slot->used += third;
        context.return_slot(*slot);
    }
    const auto second = places.begin() + 3 * num_slots;
    CHECK(std::equal(places.begin(), second, second), "the order stays");
    std::sort(places.begin(), second);
    CHECK(std::adjacent_find(places.begin(), second, [](auto a, auto b) { return b - a < third; }) == second);
    const auto slot = context.take_slot(100);
    context.return_slot(*slot);
    const auto again = context.take_slot(100);
    CHECK(again->offset == slot->offset && again->used == slot->used, "what is not used up is handed out again");
    CHECK(context.take_slot() && context.take_slot() && !context.take_slot());
}

TEST(staging_of_ranks_on_one_core_goes_over_as_much_as_that_of_one_alone) {
    constexpr std::size_t num_slots = 3, quarter = piece_bytes / 4;
    for (const bool stays_near : {false, true}) {
        World world(2, {.spin = false, .as_processes = true, .max_slots = num_slots});
        Context &context = *world[0].context;
        const std::size_t num_places = stays_near ? 2 * num_slots : 4 * num_slots;
        std::set<std::size_t> places;
        for (std::size_t i = 0; i < 3 * num_places; ++i) {
            auto slot = context.take_slot(quarter, stays_near);
            const std::size_t turn = i / num_places;
            CHECK(slot->was_far == (turn == 1), i, "the other core has read in the first turn");
            CHECK(slot->is_far == (turn == 0 && slot->used > 0), i);
            slot->is_far = turn == 0;
            places.insert(slot->offset + slot->used);
            slot->used += quarter;
            context.return_slot(*slot);
        }
        CHECK(places.size() == num_places, places.size());
    }
}

TEST(staging_does_with_the_slots_that_memory_has_room_for) {
    Context context(std::make_shared<Arena>(round_up(sizeof(Presence), page_bytes()) + 2 * piece_bytes));
    const auto first = context.take_slot(), second = context.take_slot();
    CHECK(first && second && !context.take_slot());
    context.return_slot(*first);
    CHECK(context.take_slot(100)->offset == first->offset && !context.take_slot(100));
}

TEST(staging_that_is_still_growing_is_not_copied_to_make_room) {
    // Rank 0 folds the messages of ranks 1 and 2. Rank 1 has begun to write, rank 2 has not: rank 1's data may stay.
    const Fixture &direct = fixture("all_reduce", "direct", 3);
    constexpr std::size_t block = 5000; // elements of 8 bytes: five cells
    World world(3, {.as_processes = true});
    std::vector<std::unique_ptr<Buffer>> memories;
    std::vector<std::unique_ptr<Executor>> executors;
    for (int rank = 0; rank < 3; ++rank) {
        for (int i = 0; i < 2; ++i) {
            memories.push_back(
                std::make_unique<Buffer>(world[rank].arena, Memory::owned, block * sizeof(std::int64_t)));
        }
        const std::vector<std::int64_t> values(block, rank + 1);
        std::byte *input = memories[memories.size() - 2]->data();
        std::memcpy(input, values.data(), block * sizeof(std::int64_t));
        executors.push_back(std::make_unique<Executor>(*direct.plans[static_cast<std::size_t>(rank)],
                                                       world[rank].communicator().transport()));
        executors.back()->start(
            call_of(direct, rank, Dtype::int64, Op::sum, block, input, memories.back()->data()).launch);
    }
    CHECK(!executors[1]->advance());
    auto &num_cells = first_line(world, 1, 0).num_cells;
    num_cells.store(2);
    executors[0]->waiting_for(); // so it continues in parts
    CHECK(!executors[0]->advance());
    CHECK(transport_of(world, 0).view(1).bytes.size() == 2 * cell, "nothing of it was released");
    num_cells.store(Endpoint::Line::all_cells);
    for (bool done = false; !done;) {
        done = true;
        for (auto &executor : executors) done = executor->advance() && done;
    }
    for (std::size_t rank = 0; rank < 3; ++rank) {
        std::vector<std::int64_t> sums(block);
        std::memcpy(sums.data(), memories[2 * rank + 1]->data(), block * sizeof(std::int64_t));
        CHECK(std::ranges::count(sums, 6) == static_cast<std::ptrdiff_t>(block));
    }
}

// The head of a message -----------------------------------------------------------------------------------------------

TEST(staging_shows_a_head_before_its_payload) {
    World world(2, {.as_processes = true});
    ShmTransport &writer = transport_of(world, 1), &reader = transport_of(world, 0);
    const auto head = counted(Endpoint::head_bytes, 100), payload = counted(2 * cell);
    CHECK(writer.reach({}).head_bytes == head.size());
    CHECK(writer.post(std::array{0}, payload, tag, {.head = head}).num_bytes == payload.size() &&
          writer.posted(0) == 1);
    auto &num_cells = first_line(world, 1, 0).num_cells;
    num_cells.store(0);
    const View first = reader.view(1);
    CHECK(std::ranges::equal(first.bytes, head) && first.tag == tag && !first.attached);
    reader.release(1, 10);
    CHECK(std::ranges::equal(reader.view(1).bytes, std::span(head).subspan(10)));
    reader.release(1, head.size() - 10);
    CHECK(reader.view(1).bytes.empty() && writer.released(0) == 0, "nothing of the payload is there yet");
    num_cells.store(1);
    const View part = reader.view(1);
    CHECK(std::ranges::equal(part.bytes, std::span(payload).first(cell)) && part.num_coming == cell && part.tag == tag);
    reader.release(1, cell);
    CHECK(reader.view(1).bytes.empty() && writer.released(0) == 0);
    num_cells.store(Endpoint::Line::all_cells);
    CHECK(std::ranges::equal(reader.view(1).bytes, std::span(payload).subspan(cell)));
    reader.release(1, cell);
    CHECK(writer.released(0) == 1 && reader.view(1).bytes.empty());
}

TEST(staging_lends_what_is_behind_a_head) {
    World world(2, {.as_processes = true});
    const auto head = counted(24);
    const Buffer payload(world[1].arena, Memory::registered, 2 * cell);
    const Taken published =
        transport_of(world, 1).post(std::array{0}, payload.bytes(), tag, {.way = Way::lend, .head = head});
    CHECK(published.lent && published.num_bytes == 2 * cell);
    ShmTransport &reader = transport_of(world, 0);
    CHECK(std::ranges::equal(reader.view(1).bytes, head));
    reader.release(1, head.size());
    CHECK(reader.view(1).bytes.data() == payload.data() && reader.view(1).bytes.size() == 2 * cell);
    reader.release(1, 2 * cell - 1);
    CHECK(transport_of(world, 1).released(0) == 0);
    reader.release(1, 1);
    CHECK(transport_of(world, 1).released(0) == 1);
}

TEST(staging_trusts_no_head_that_is_longer_than_its_line) {
    World world(2, {.as_processes = true});
    CHECK(transport_of(world, 1).post(std::array{0}, counted(1000), tag, {.head = counted(24)}).num_bytes == 1000);
    ShmTransport &reader = transport_of(world, 0);
    first_line(world, 1, 0).num_head_bytes = Endpoint::head_bytes + 1;
    CHECK(failure_of([&] { reader.view(1); })->cause == Cause::internal);
    first_line(world, 1, 0).num_head_bytes = Endpoint::head_bytes;
    CHECK(reader.view(1).bytes.size() == Endpoint::head_bytes);
    reader.release(1, Endpoint::head_bytes);
    first_line(world, 1, 0).num_bytes = 1; // shorter than what was already read of it: a lie
    CHECK(reader.view(1).bytes.size() == 1);
}

// Slots that come back ------------------------------------------------------------------------------------------------

namespace {

/// Reads all that its peer has sent.
void read_all(World &world, int rank) {
    const int peer = 1 - rank;
    ShmTransport &reader = transport_of(world, rank);
    for (View view = reader.view(peer); !view.bytes.empty(); view = reader.view(peer)) {
        reader.release(peer, view.bytes.size());
    }
}

/// From now on, staged slots come back when they are read: no slots are handed to the other rank.
void keep_slots(World &world) {
    for (int rank = 0; rank < world.size(); ++rank) {
        while (world[rank].context->take_slot_to_share_out()) continue;
    }
}

/// Returns where rank 1 stages a message to rank 0.
std::uint64_t place_of_next(World &world, std::size_t num_bytes = 1000) {
    const std::uint64_t number = transport_of(world, 1).posted(0);
    CHECK(publish(world, 1, 0, counted(num_bytes)) == num_bytes);
    const Endpoint::Line *const ring = transport_of(world, 1).endpoint(1).ring(Lane::collectives, 0);
    return ring[number % largest_ring].elsewhere.offset;
}

} // namespace

TEST(staging_goes_on_behind_what_another_core_has_read) {
    World world(2, {.spin = true, .as_processes = true, .max_slots = 2});
    keep_slots(world);
    std::array<std::uint64_t, 3> turns{};
    for (std::uint64_t &turn : turns) {
        turn = place_of_next(world, 8000);
        for (std::size_t used = 8000; used + 8000 <= piece_bytes; used += 8000) {
            if (used % 32000 == 0) read_all(world, 0);
            CHECK(place_of_next(world, 8000) == turn + used, used, "whether the others were read or not");
        }
        read_all(world, 0);
    }
    CHECK(turns[1] != turns[0] && turns[2] == turns[0], "the slots take turns");
}

TEST(staging_of_little_or_for_this_core_begins_anew_when_its_reader_tells) {
    for (const bool spin : {true, false}) {
        for (const std::size_t told_in : {std::size_t{8}, std::size_t{1000}}) { // in its line, and in a slot
            World world(2, {.spin = spin, .as_processes = true});
            keep_slots(world);
            const std::size_t size = spin ? 1000 : 8000, taken = spin ? 1024 : 8000; // two ranks share a core
            const auto tell = [&] {
                CHECK(publish(world, 0, 1, counted(told_in)) == told_in);
                read_all(world, 1);
            };
            const std::uint64_t first = place_of_next(world, size);
            CHECK(place_of_next(world, size) == first + taken, "it was not read");
            transport_of(world, 0).release(1, size);
            tell();
            CHECK(place_of_next(world, size) == first + 2 * taken, "one was read, the others not");
            read_all(world, 0);
            tell();
            CHECK(place_of_next(world, size) == first, spin, told_in);
        }
    }
}

TEST(staging_of_short_messages_holds_no_more_slots_than_it_needs) {
    World world(2, {.as_processes = true, .max_slots = 3});
    Context &context = *world[1].context;
    keep_slots(world);
    for (int i = 0; i < 3; ++i) place_of_next(world);
    CHECK(context.take_slot() && context.take_slot() && !context.take_slot(), "one is in use");
}

TEST(staging_begins_a_full_slot_anew_for_a_short_message) {
    World world(2, {.as_processes = true, .max_slots = 1});
    keep_slots(world);
    const std::uint64_t slot = place_of_next(world);
    for (const std::size_t size : {piece_bytes, std::size_t{1000}}) {
        read_all(world, 0);
        CHECK(publish(world, 0, 1, counted(1000)) == 1000);
        read_all(world, 1);
        if (size == piece_bytes) CHECK(publish(world, 1, 0, counted(size)) == size);
        else CHECK(place_of_next(world) == slot);
    }
}

TEST(staging_looks_for_slots_when_one_is_full) {
    for (const std::size_t max_slots : {std::size_t{1}, std::size_t{8}}) {
        World world(2, {.spin = true, .as_processes = true, .max_slots = max_slots});
        std::set<std::uint64_t> places;
        for (int i = 0; i < 50; ++i) { // nothing goes the other way, so nothing is reported
            places.insert(place_of_next(world, piece_bytes));
            read_all(world, 0);
        }
        CHECK(places.size() == max_slots, places.size(), max_slots);
    }
}

TEST(staging_keeps_a_slot_until_all_its_readers_have_gone_on) {
    World world(3, {.as_processes = true, .max_slots = 1});
    const std::array both{1, 2};
    const auto data = counted(piece_bytes);
    const auto send = [&] {
        const std::uint64_t number = transport_of(world, 0).posted(1);
        CHECK(transport_of(world, 0).post(both, data, tag).num_bytes == data.size());
        const Endpoint::Line *const ring = transport_of(world, 0).endpoint(0).ring(Lane::collectives, 1);
        return ring[number % largest_ring].elsewhere.offset;
    };
    const std::uint64_t first = send();
    transport_of(world, 1).release(0, data.size());
    CHECK(send() != first, "rank 2 may still read it");
    transport_of(world, 2).release(0, data.size());
    CHECK(send() == first);
}

TEST(staging_of_messages_to_many_shares_a_slot) {
    constexpr std::size_t size = 8000;
    World world(4, {.spin = true, .as_processes = true, .max_slots = 2});
    keep_slots(world);
    const auto send = [&](int peer) {
        const std::uint64_t number = transport_of(world, 0).posted(peer);
        const std::size_t length = transport_of(world, 0).post(std::span(&peer, 1), counted(size), tag).num_bytes;
        CHECK(length == size);
        const Endpoint::Line *const ring = transport_of(world, 0).endpoint(0).ring(Lane::collectives, peer);
        return ring[number % largest_ring].elsewhere.offset;
    };
    const auto read = [&](int peer) {
        const View view = transport_of(world, peer).view(0);
        CHECK(std::ranges::equal(view.bytes, counted(size)));
        transport_of(world, peer).release(0, size);
    };
    constexpr std::size_t of_slot = piece_bytes / size;
    const std::uint64_t first = send(3);
    for (std::size_t i = 1; i < of_slot; ++i) {
        const int peer = i % 2 == 0 ? 1 : 2;
        CHECK(send(peer) == first + i * size, i);
        read(peer);
    }
    const std::uint64_t second = send(1);
    CHECK(second - first >= piece_bytes, "it is full");
    read(1);
    for (std::size_t i = 1; i < of_slot; ++i) {
        CHECK(send(2) == second + i * size, i);
        read(2);
    }
    CHECK(send(1) == second, "as rank 3 may still read the first");
    read(3);
    read(1);
    std::set<std::uint64_t> places;
    for (std::size_t i = 1; i <= 2 * of_slot; ++i) {
        places.insert(send(2));
        read(2);
    }
    CHECK(places.contains(first));
}

TEST(staging_of_what_shares_a_slot_waits_for_its_own_reader_alone) {
    World world(3, {.as_processes = true});
    const auto send = [&](int peer, std::size_t size) {
        return transport_of(world, 0).post(std::span(&peer, 1), counted(size), tag).num_bytes;
    };
    for (int i = 0; i < 6; ++i) {
        CHECK(send(2, 100) == 100 && send(1, 100) == 100);
        transport_of(world, 1).release(0, transport_of(world, 1).view(0).bytes.size());
    }
    CHECK(send(1, 20000) == 20000, "rank 2 has read nothing");
}

TEST(staging_survives_a_peer_that_tells_of_more_than_was_sent) {
    for (const std::size_t size : {std::size_t{8}, std::size_t{1000}}) {
        World world(2, {.as_processes = true});
        CHECK(publish(world, 0, 1, counted(size)) == size);
        Endpoint::Line &line = first_line(world, 0, 1);
        if (size == 8) line.set_released_in_line(1);
        else line.elsewhere.released = std::uint64_t{1} << 40;
        CHECK(!transport_of(world, 1).view(0).bytes.empty());
        std::uint64_t num_sent = 0;
        while (num_sent <= largest_ring && publish(world, 1, 0, counted(8)) > 0) ++num_sent;
        CHECK(num_sent == largest_ring, num_sent, "as many as its counter leaves room for");
    }
}
