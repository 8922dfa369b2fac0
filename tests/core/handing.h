// Messages through the slots of two transports, one at a time, for the tests of slots that change hands.
#pragma once

#include "check.h"
#include "transport/shm/shm.h"
#include "world.h"

#include <algorithm>
#include <vector>

namespace hocket::test {

using Tier = Endpoint::Tier;

inline constexpr std::uint32_t tag = 7;
inline constexpr std::size_t num_slots = 15; // of a rank with one peer: 2 MiB, without the reserved slot

/// Sends one message and returns its line.
inline Endpoint::Line &send(World &world, int from, int to, std::size_t num_bytes = 1000, std::size_t first = 0) {
    ShmTransport &transport = transport_of(world, from);
    const std::uint64_t number = transport.posted(to);
    CHECK(transport.post(std::span(&to, 1), counted(num_bytes, first), tag).num_bytes == num_bytes);
    return transport.endpoint(from).ring(Lane::collectives, to)[number % largest_ring];
}

/// Reads one message.
inline void receive(World &world, int at, int from, std::size_t num_bytes = 1000, std::size_t first = 0) {
    ShmTransport &transport = transport_of(world, at);
    CHECK(std::ranges::equal(transport.view(from).bytes, counted(num_bytes, first)), at, from);
    transport.release(from, num_bytes);
}

/// `other` sends a message in a slot that it keeps, so that `one` may hand its own slots to it.
inline void greet(World &world, int one = 0, int other = 1) {
    CHECK(send(world, other, one).tier == Tier::kept);
    receive(world, one, other);
}

/// Free slots of the pool.
inline std::size_t count_pooled(Context &context) {
    std::vector<Context::Slot> pool;
    while (const auto slot = context.take_slot()) pool.push_back(*slot);
    for (const Context::Slot &slot : pool) context.return_slot(slot);
    return pool.size();
}

} // namespace hocket::test
