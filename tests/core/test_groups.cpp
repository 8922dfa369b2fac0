// Messages that go at once: in groups with slower messages, and at the same time as those of other ranks.

#include "check.h"
#include "matchers.h"
#include "world.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <list>
#include <random>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr std::array<std::size_t, 8> lengths{0, 1, 48, 5000, 8193, 70'000, 200'000, 300'000};

/// One message of a group, with its memory.
struct Part {
    Message message;
    std::vector<std::byte> bytes, expected;

    Part(bool sends, int peer, std::uint64_t tag, std::vector<std::byte> given)
        : bytes(sends ? given : std::vector<std::byte>(given.size())), expected(std::move(given)) {
        message = {.sends = sends, .peer = peer, .tag = tag, .data = bytes.data(), .num_bytes = bytes.size()};
    }
};

} // namespace

TEST(groups_of_messages_keep_their_order_whatever_goes_at_once) {
    for (const bool spin : {false, true}) {
        World world(3, {.spin = spin});
        world.run([](Rank &rank) {
            std::mt19937 all(7), own(static_cast<unsigned>(rank.rank)); // all ranks know which rank sends what
            for (int round = 0; round < (thread_sanitizer ? 60 : 200); ++round) {
                const std::size_t longest = all() % lengths.size(); // many groups have only short ones
                std::list<Part> parts;
                for (int number = 0; number < 12; ++number) {
                    const int from = static_cast<int>(all() % 3), to = static_cast<int>(all() % 3);
                    const auto given = content(round + number, lengths[all() % (longest + 1)]);
                    const bool from_any = number % 4 == 3; // otherwise messages of a pair have one tag, and so an order
                    const std::uint64_t tag = from_any ? 10U + static_cast<unsigned>(12 * round + number) : 5U;
                    if (from == rank.rank) parts.emplace_back(true, to, tag, given);
                    if (to == rank.rank) parts.emplace_back(false, from_any ? any_source : from, tag, given);
                }
                std::array<unsigned, 8> turn; // of each peer and direction, so that their order stays
                std::ranges::generate(turn, own);
                std::vector<const Part *> order;
                for (const Part &part : parts) order.push_back(&part);
                std::ranges::stable_sort(order, {}, [&](const Part *part) {
                    return turn.at(2 * static_cast<std::size_t>(part->message.peer + 1) +
                                   (part->message.sends ? 1 : 0));
                });
                std::vector<Message> messages;
                for (const Part *part : order) messages.push_back(part->message);
                rank.communicator().messages().run(messages, patience, do_nothing);
                for (const Part &part : parts) CHECK(part.bytes == part.expected, part.bytes.size(), "in round", round);
            }
        });
    }
}

/// If each message has already arrived: now and then a call checks all peers, in a send or a receive.
TEST(messages_of_others_are_taken_by_who_needs_only_itself) {
    for (const bool begins_with_send : {true, false}) {
        World world(2, {.spin = true});
        std::atomic<bool> sent{false};
        world.run([&](Rank &rank) {
            std::array<std::byte, 8> bytes{};
            const auto run = [&](bool sends, int peer) {
                const Message one{
                    .sends = sends, .peer = peer, .tag = 0, .data = bytes.data(), .num_bytes = bytes.size()};
                rank.communicator().messages().run({&one, 1}, patience, do_nothing);
            };
            if (rank.rank == 0 && begins_with_send) run(true, 0);
            while (rank.rank == 0 && !sent.load()) {
                CHECK(!world.has_failed());
                run(true, 0);
                run(false, 0);
            }
            for (int i = 0; i < 24; ++i) run(rank.rank == 1, 1 - rank.rank); // more than a channel holds
            sent.store(true);
            if (rank.rank == 0 && begins_with_send) run(false, 0);
        });
    }
}
