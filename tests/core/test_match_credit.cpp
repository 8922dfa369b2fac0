// How many messages without a receive the matcher keeps; and which of the other messages wait for a kind of room.

#include "check.h"
#include "matchers.h"

using namespace hocket;
using namespace hocket::test;

namespace {

/// Could lend all memory, and has no handed slots at first.
struct Wanting final : Relay {
    using Relay::Relay;
    Reach reach(std::span<const int>) const override { return {}; }
    MemoryKind memory_of(Bytes, std::span<const int>, bool) override { return MemoryKind::registered; }
    Taken post(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &how) override {
        return how.may_wait && misses_slot ? Taken{} : Relay::post(peers, bytes, tag, how);
    }
    bool misses_slot = true;
};

} // namespace

TEST(match_keeps_a_bounded_part_of_what_nobody_asked_for) {
    for (Over over : all_transports) {
        Machines machines(2, over);
        constexpr std::size_t count = 1000, size = 64;
        std::vector<std::vector<std::byte>> sent, found(count, std::vector<std::byte>(size));
        std::vector<std::shared_ptr<Exchange>> sends;
        for (std::size_t i = 0; i < count; ++i) sent.push_back(content(i, size));
        for (auto &bytes : sent) sends.push_back(machines.send(0, 1, 0, bytes));
        machines.settle();
        CHECK(machines[1].num_kept_bytes() == size * Matcher::max_unmatched, machines[1].num_kept_bytes());
        CHECK(machines[1].unmatched().size() == count);
        for (auto &bytes : found) machines.receive(1, 0, 0, bytes);
        machines.settle();
        for (const auto &send : sends) CHECK(send->done);
        CHECK(found == sent && machines[1].num_kept_bytes() == 0);
        machines.send(0, 1, 0, sent[0]);
        machines.settle();
        CHECK(machines[1].num_kept_bytes() == size, "credits have come back");
    }
}

/// Even if many messages without a receive went ahead: otherwise ranks that first send each other much, and then a
/// short message each, would wait forever.
TEST(match_leaves_credit_to_short_ones) {
    for (Over over : {Over::bytes, Over::threads, Over::processes}) {
        for (const std::size_t size : {eager_bytes, short_bytes + 1}) {
            Machines machines(2, over);
            auto large = content(1, size), small = content(2, 8), found = large, answer = small;
            std::vector<std::shared_ptr<Exchange>> ahead, words;
            for (std::size_t sum = 0; sum < 2 * eager_bytes; sum += size) {
                ahead.push_back(machines.send(0, 1, 1, large));
            }
            for (unsigned i = 0; i < Matcher::max_unmatched - Matcher::max_unmatched_longer; ++i) {
                words.push_back(machines.send(0, 1, 2, small));
            }
            machines.settle();
            for (const auto &word : words) CHECK(word->done, "it waits for nobody");
            CHECK(ahead.front()->done && !ahead.back()->done);
            for (std::size_t i = 0; i < words.size(); ++i) machines.receive(1, 0, 2, answer);
            for (std::size_t i = 0; i < ahead.size(); ++i) machines.receive(1, 0, 1, found);
            machines.settle();
            CHECK(ahead.back()->done && answer == small && found == large);
        }
    }
}

TEST(match_keeps_as_many_bytes_of_longer_ones) {
    for (Over over : {Over::threads, Over::processes}) {
        Machines machines(2, over);
        constexpr std::size_t count = 9, size = eager_bytes;
        std::vector<std::vector<std::byte>> sent, found(count, std::vector<std::byte>(size));
        for (std::size_t i = 0; i < count; ++i) sent.push_back(content(i, size));
        for (int round = 0; round < 3; ++round) { // credits come back
            for (auto &bytes : sent) machines.send(0, 1, 0, bytes);
            machines.settle();
            CHECK(machines[1].num_kept_bytes() == short_bytes * Matcher::max_unmatched_longer);
            CHECK(machines[1].unmatched().size() == count);
            for (auto &bytes : found) machines.receive(1, 0, 0, bytes);
            machines.settle();
            CHECK(found == sent && machines[1].num_kept_bytes() == 0);
            for (auto &bytes : found) std::ranges::fill(bytes, std::byte{});
        }
    }
}

/// An eager message of two pieces may find room for the first one only.
TEST(match_sends_the_rest_of_what_goes_unasked_once_there_is_room) {
    Machines machines(2, Over::processes);
    auto shorter = content(1, 5000), longer = content(2, 200'000);
    for (int i = 0; i < 3; ++i) CHECK(machines.send(0, 1, 1, shorter)->done);
    const auto sent = machines.send(0, 1, 2, longer);
    machines[0].advance();
    CHECK(!sent->done, "four pieces of it are unread");
    machines[1].advance();
    machines[0].advance();
    CHECK(sent->done, "though nobody has asked for it");
    machines.settle();
    CHECK(machines[1].num_kept_bytes() == 3 * shorter.size() + longer.size());
    std::vector<std::byte> found(longer.size());
    const auto received = machines.receive(1, 0, 2, found);
    CHECK(received->done && found == longer);
    found.resize(shorter.size());
    for (int i = 0; i < 3; ++i) CHECK(machines.receive(1, 0, 1, found)->done && found == shorter);
    CHECK(machines[1].num_kept_bytes() == 0);
}

// Messages that go unasked or are long enough to be lent do not wait, nor does one to a peer whose sends have no
// receive here.
TEST(match_waits_for_a_slot_of_a_peer_that_sends_as_well) {
    enum class Back : std::uint8_t { nothing, not_asked_for, as_much };
    struct Run {
        std::size_t size;
        Back back;
        bool waits;
    };
    for (const Run &run : {
             Run{eager_bytes + 1, Back::as_much, true},
             Run{eager_bytes, Back::as_much, false},
             Run{std::size_t{8} << 20, Back::as_much, false},
             Run{eager_bytes + 1, Back::nothing, false},
             Run{eager_bytes + 1, Back::not_asked_for, false},
         }) {
        Machines machines(2, Over::processes, Profile{.own_cache = std::size_t{4} << 20});
        Wanting one(*machines.transports[0]), other(*machines.transports[1]);
        machines.replace(0, one);
        machines.replace(1, other);
        auto there = content(1, run.size), back = content(2, run.size);
        std::vector<std::byte> found_there(run.size), found_back(run.size);
        const auto received = machines.receive(1, 0, 5, found_there);
        machines.send(0, 1, 5, there);
        std::shared_ptr<Exchange> received_back;
        if (run.back != Back::nothing) machines.send(1, 0, 5, back);
        if (run.back == Back::as_much) received_back = machines.receive(0, 1, 5, found_back);
        machines.settle();
        CHECK(received->done != run.waits && (!received_back || received_back->done != run.waits), run.size);
        one.misses_slot = false; // the other rank's piece brings it
        machines.settle();
        CHECK(received->done && (!received_back || received_back->done), run.size);
        CHECK(found_there == there && (!received_back || found_back == back), run.size);
    }
}

TEST(match_sends_what_goes_unasked_though_all_slots_are_with_a_peer_that_sends) {
    Machines machines(2, Over::processes);
    Wanting wanting(*machines.transports[0]);
    machines.replace(0, wanting);
    auto longer = content(1, eager_bytes + 1), unasked = content(2, eager_bytes), found = longer;
    machines.send(1, 0, 5, longer);
    machines[1].advance();
    machines.receive(0, 1, 5, found);
    machines[0].advance(); // has seen the announcement, and asks for the message
    const auto sent = machines.send(0, 1, 5, unasked);
    machines[0].advance();
    CHECK(sent->done && machines[0].waiting_for() == std::vector<int>{1});
}

// To announce a message takes a turn of each rank that shares the core.
TEST(match_sends_what_is_waited_for_unasked_where_ranks_share_cores) {
    enum class First : std::uint8_t { nothing, awaited, taken_from_any, of_another_tag };
    struct Run {
        Over over;
        First first;
        std::size_t size;
        bool is_unasked;
    };
    constexpr std::size_t least = eager_bytes + 1;
    for (const Run &run : {
             Run{Over::crowded, First::awaited, least, true},
             Run{Over::crowded, First::awaited, most_awaited_bytes, true},
             Run{Over::crowded, First::awaited, most_awaited_bytes + 1, false},
             Run{Over::crowded, First::nothing, least, false},
             Run{Over::crowded, First::taken_from_any, least, false},
             Run{Over::crowded, First::of_another_tag, least, true},
             Run{Over::apart, First::awaited, least, false},
         }) {
        const bool may_be_unasked = run.over == Over::crowded && run.size <= most_awaited_bytes;
        Machines machines(2, run.over);
        const Buffer bytes((*machines.world)[0].arena, Memory::small, run.size);
        std::vector<std::byte> found(run.size), other(run.size);
        std::vector<std::byte> brief(piece_bytes + 1), found_brief(brief.size());
        const auto send = [&](std::uint64_t tag) {
            std::ranges::copy(content(tag, run.size), bytes.data());
            return machines.post(0,
                                 {.sends = true, .peer = 1, .tag = tag, .data = bytes.data(), .num_bytes = run.size});
        };
        std::uint64_t tag = 10; // earlier messages change nothing
        for (const First first : {run.first, run.first, First::awaited, First::nothing}) {
            const bool is_unasked = tag < 12 ? run.is_unasked : first == First::awaited && may_be_unasked;
            machines.receive(1, 0, 9, found_brief);
            machines.send(0, 1, 9, brief);
            machines.settle();
            std::shared_ptr<Exchange> received, waiting;
            if (first == First::awaited) received = machines.receive(1, 0, tag, found);
            if (first == First::taken_from_any) received = machines.receive(1, any_source, tag, found);
            if (first == First::of_another_tag) waiting = machines.receive(1, 0, tag + 100, other);
            const auto sent = send(tag);
            machines[0].advance();
            CHECK(sent->done == is_unasked, run.size, static_cast<int>(first), tag);
            machines.settle();
            CHECK(machines[1].num_kept_bytes() == (first == First::of_another_tag ? run.size : 0));
            if (!received) received = machines.receive(1, 0, tag, found);
            machines.settle();
            CHECK(sent->done && received->done && found == content(tag, run.size), run.size, tag);
            if (waiting) {
                const auto last = send(tag + 100);
                machines.settle();
                CHECK(last->done && waiting->done && other == content(tag + 100, run.size), tag);
            }
            ++tag;
        }
    }
}

TEST(match_keeps_one_long_message_that_came_unasked) {
    constexpr std::size_t size = most_awaited_bytes;
    Machines machines(2, Over::crowded);
    std::vector<std::vector<std::byte>> found(4, std::vector<std::byte>(size));
    const Buffer bytes((*machines.world)[0].arena, Memory::small, size);
    auto shorter = content(2, 8), longer = content(3, short_bytes + 1);
    for (std::uint64_t tag = 0; tag < found.size(); ++tag) machines.receive(1, 0, tag, found[tag]);
    for (int i = 0; i < 3; ++i) { // without receives
        machines.post(0, {.sends = true, .peer = 1, .tag = 9, .data = bytes.data(), .num_bytes = size});
    }
    machines.settle();
    CHECK(machines[1].num_kept_bytes() == size, "and of them the others were announced");
    CHECK(!machines.send(0, 1, 9, longer)->done, "nor has one credit that is not short");
    machines.settle();
    for (unsigned i = 0; i < Matcher::max_unmatched - Matcher::max_unmatched_longer; ++i) {
        CHECK(machines.send(0, 1, 9, shorter)->done, i);
        machines.settle();
    }
    CHECK(!machines.send(0, 1, 9, shorter)->done);
    machines.settle();
}
