// Messages that begin together, of which some go at once and others take longer.

#include "check.h"
#include "matchers.h"
#include "world.h"

#include <algorithm>
#include <array>
#include <list>
#include <random>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr std::array<std::size_t, 7> lengths{0, 1, 48, 5000, 8193, 70'000, 300'000};

/// One of a group, with its memory.
struct Part {
    Message message;
    std::vector<std::byte> bytes, expected;

    Part(bool sends, int peer, std::vector<std::byte> given)
        : bytes(sends ? given : std::vector<std::byte>(given.size())), expected(std::move(given)) {
        // Those of one pair have one tag, and so an order.
        message = {.sends = sends, .peer = peer, .tag = 5, .data = bytes.data(), .num_bytes = bytes.size()};
    }
};

} // namespace

TEST(groups_of_messages_keep_their_order_whatever_goes_at_once) {
    for (const bool spin : {false, true}) {
        World world(3, {.spin = spin});
        world.run([](Rank &rank) {
            std::mt19937 all(7), own(static_cast<unsigned>(rank.rank)); // all ranks know who sends what
            for (int round = 0; round < (thread_sanitizer ? 60 : 200); ++round) {
                const std::size_t longest = all() % lengths.size(); // many groups have short ones only
                std::list<Part> parts;
                for (int number = 0; number < 12; ++number) {
                    const int from = static_cast<int>(all() % 3), to = static_cast<int>(all() % 3);
                    const auto given = content(round + number, lengths[all() % (longest + 1)]);
                    if (from == rank.rank) parts.emplace_back(true, to, given);
                    if (to == rank.rank) parts.emplace_back(false, from, given);
                }
                std::array<unsigned, 6> turn; // of each pair and direction: then its order stays
                std::ranges::generate(turn, own);
                std::vector<const Part *> order;
                for (const Part &part : parts) order.push_back(&part);
                std::ranges::stable_sort(order, {}, [&](const Part *part) {
                    return turn.at(2 * static_cast<std::size_t>(part->message.peer) + (part->message.sends ? 1 : 0));
                });
                std::vector<Message> messages;
                for (const Part *part : order) messages.push_back(part->message);
                rank.communicator().messages().run(messages, patience, do_nothing);
                for (const Part &part : parts) CHECK(part.bytes == part.expected, part.bytes.size(), "in round", round);
            }
        });
    }
}
