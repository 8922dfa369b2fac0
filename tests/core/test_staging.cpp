// Staging: slots that take turns, and messages that are read while they are written.

#include "check.h"
#include "executor.h"
#include "world.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr std::uint32_t tag = 7;
constexpr std::size_t cell = Endpoint::cell_bytes;

ShmTransport &transport_of(World &world, int rank) { return world[rank].communicator().transport(); }

std::size_t publish(World &world, int from, int to, Bytes bytes) {
    return transport_of(world, from).publish(std::span(&to, 1), bytes, tag, false).num_bytes;
}

/// The line of the first message of that channel, as its writer sees it.
Endpoint::Line &first_line(World &world, int from, int to) {
    return transport_of(world, from).endpoint(from).ring(Lane::collectives, to)[0];
}

std::vector<std::byte> counted(std::size_t num_bytes, std::size_t first = 0) {
    std::vector<std::byte> bytes(num_bytes);
    for (std::size_t i = 0; i < num_bytes; ++i) bytes[i] = static_cast<std::byte>((first + i) % 251);
    return bytes;
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
    int num_large = 0, num_small = 0;
    while (publish(world, 1, 0, large) > 0) ++num_large;
    while (publish(world, 1, 0, small) > 0) ++num_small;
    CHECK(num_large == 4 && num_small > num_large, num_large, num_small);
    ShmTransport &reader = transport_of(world, 0);
    reader.release(1, reader.view(1).bytes.size());
    for (int i = 0; i < num_small; ++i) { // what is small may lie there for long
        CHECK(publish(world, 1, 0, large) == 0);
        reader.release(1, reader.view(1).bytes.size());
    }
    CHECK(publish(world, 1, 0, large) == large.size());
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

TEST(staging_does_with_the_slots_that_memory_has_room_for) {
    Context context(std::make_shared<Arena>(round_up(sizeof(Presence), page) + 2 * piece_bytes));
    const auto first = context.take_slot(), second = context.take_slot();
    CHECK(first && second && !context.take_slot());
    context.return_slot(*first);
    CHECK(context.take_slot(100)->offset == first->offset && !context.take_slot(100));
}

TEST(staging_that_is_still_growing_is_not_copied_to_make_room) {
    // Rank 0 folds what ranks 1 and 2 send. The one has begun to write, the other has not: what is there may stay.
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
