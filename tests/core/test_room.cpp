// Room in a channel: a short message also says how many messages its sender has released; it may stay there for long.

#include "check.h"
#include "world.h"

#include <cstring>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr std::uint32_t tag = 7;
constexpr std::uint64_t room = largest_ring;

bool publish(Transport &from, int to, std::uint64_t number) {
    const std::span bytes(reinterpret_cast<const std::byte *>(&number), sizeof number);
    return from.post(std::span(&to, 1), bytes, tag).num_bytes > 0;
}

/// Reads all messages from rank 0, counting on from `num_read`.
void read_all(Transport &by, std::uint64_t &num_read) {
    for (View view = by.view(0); !view.bytes.empty(); view = by.view(0)) {
        std::uint64_t number = 0;
        std::memcpy(&number, view.bytes.data(), sizeof number);
        CHECK(number == num_read, "message", num_read, "is", number);
        by.release(0, sizeof number);
        ++num_read;
    }
}

} // namespace

TEST(room_is_not_made_by_a_message_that_lies_unread_for_long) {
    constexpr std::uint64_t num_messages = 70'000; // more than 2^16
    World world(2, {.as_processes = true});
    Transport &zero = world[0].communicator().transport(), &one = world[1].communicator().transport();
    CHECK(publish(one, 0, 0), "which rank 0 looks at, and leaves where it lies");
    std::uint64_t num_sent = 0, num_read = 0;
    while (num_read < num_messages) {
        for (int time = 0; time < 2; ++time) {
            while (publish(zero, 1, num_sent)) ++num_sent;
            CHECK(num_sent == num_read + room, num_sent, "are sent, of which", num_read, "are read");
            CHECK(zero.view(1).bytes.size() == sizeof num_sent);
        }
        read_all(one, num_read);
    }
}

TEST(room_is_less_among_many_members) {
    static_assert(ring_size_of(Lane::collectives, 1) == largest_ring && ring_size_of(Lane::collectives, 8) == 64);
    static_assert(ring_size_of(Lane::collectives, 9) == 32 && ring_size_of(Lane::collectives, 1024) == least_ring);
    World world(9);
    Transport &zero = world[0].communicator().transport(), &last = world[8].communicator().transport();
    std::uint64_t num_sent = 0, num_read = 0;
    for (int round = 0; round < 3; ++round) {
        while (publish(zero, 8, num_sent)) ++num_sent;
        CHECK(num_sent == num_read + least_ring, num_sent, "are sent, of which", num_read, "are read");
        read_all(last, num_read);
    }
    CHECK(num_read == 3 * least_ring, num_read);
}

TEST(room_is_told_of_by_short_messages) {
    World world(2, {.as_processes = true});
    ShmTransport &zero = world[0].communicator().transport(), &one = world[1].communicator().transport();
    const Endpoint &writer = one.endpoint(1);
    for (std::uint64_t number = 0; number < room; ++number) CHECK(publish(zero, 1, number));
    for (std::uint64_t number = 0; number < 5; ++number) {
        CHECK(!one.view(0).bytes.empty());
        one.release(0, sizeof number);
    }
    CHECK(publish(one, 0, 0));
    Endpoint::Line &line = writer.ring(Lane::collectives, 0)[0];
    Endpoint::Counter &counter = writer.released(Lane::collectives, 0);
    counter.value.store(0); // so that only the message can tell
    line.num_cells.store(1);
    CHECK(!zero.view(1).bytes.empty());
    zero.release(1, 0);
    CHECK(!publish(zero, 1, room), "one that is 2^32 off");
    line.num_cells.store(0);
    CHECK(!zero.view(1).bytes.empty() && !publish(zero, 1, room), "a look changes nothing");
    zero.release(1, sizeof(std::uint64_t));
    std::uint64_t num_sent = 0;
    while (publish(zero, 1, room + num_sent)) ++num_sent;
    CHECK(num_sent == 5, num_sent);
}
