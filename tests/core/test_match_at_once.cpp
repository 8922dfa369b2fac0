// Messages that have arrived before a receive is posted: when they can be taken at once.

#include "check.h"
#include "matchers.h"

#include <algorithm>

using namespace hocket;
using namespace hocket::test;

namespace {

/// Shows first two cells of a message of one full piece, and at the next call the rest.
struct Growing final : Relay {
    using Relay::Relay;
    View view(int peer) const override {
        View view = Relay::view(peer);
        if (view.bytes.size() < piece_bytes) return view;
        view.bytes = view.bytes.first(2 * cell_bytes);
        view.num_coming = piece_bytes - view.bytes.size();
        return view;
    }
};

} // namespace

TEST(match_receives_at_once_only_what_comes_next) {
    for (Over over : {Over::threads, Over::processes}) {
        for (std::size_t size : {1U, 24U, 25U, 64U, 72U, 73U, 1000U, 8192U, 8193U, 65536U, 131072U}) {
            Machines machines(2, over);
            auto first = content(1, size), second = content(2, size);
            std::vector<std::byte> a(size), b(size), longer(size + 1);
            const auto receive = [](std::vector<std::byte> &bytes, std::uint64_t tag) {
                return Exchange({.peer = 0, .tag = tag, .data = bytes.data(), .num_bytes = bytes.size()});
            };
            Exchange one = receive(a, 1), two = receive(b, 2), wrong = receive(longer, 1);
            CHECK(machines[1].may_receive_at_once(one) && !machines[1].has_come(one));
            CHECK(machines.send(0, 1, 1, first)->done && machines.send(0, 1, 2, second)->done, "they are on their way");
            CHECK(machines[1].has_come(one) && !machines[1].receive_at_once(two), "another comes before it");
            CHECK(!machines[1].receive_at_once(wrong) && !wrong.done, "post() tells the difference");
            CHECK(machines[1].receive_at_once(one) && one.done && a == first && one.source == 0 && one.found_tag == 1);
            machines.settle();
            CHECK(!machines[1].may_receive_at_once(two), "it is kept");
            const auto posted = machines.receive(1, 0, 2, b), next = machines.receive(1, 0, 2, a);
            CHECK(posted->done && b == second && posted->ordinal == one.ordinal + 1);
            CHECK(!machines[1].may_receive_at_once(one), "another is posted");
            machines.send(0, 1, 2, first);
            machines.settle();
            CHECK(next->done && machines[1].num_kept_bytes() == 0);
        }
    }
}

TEST(match_leaves_on_its_way_what_who_begins_has_not_asked_for_yet) {
    for (const Over over : {Over::threads, Over::processes}) {
        for (const std::size_t size : {1U, 1000U, 65536U}) {
            Machines machines(2, over);
            auto first = content(1, size), second = content(2, size);
            std::vector<std::byte> a(size), b(size), c(size);
            CHECK(machines.send(0, 1, 1, first)->done && machines.send(0, 1, 2, second)->done, "they are on their way");
            const auto advance = [&] {
                while (machines[1].advance(false)) continue;
            };
            const auto other = machines.receive(1, 0, 3, c);
            advance();
            CHECK(machines[1].unmatched().empty() && !other->done, "none is looked at behind one that is unasked");
            const auto one = machines.receive(1, 0, 1, a);
            advance();
            CHECK(one->done && a == first && machines[1].unmatched().empty());
            while (machines[1].advance()) continue;
            CHECK(machines[1].num_kept_bytes() == size, "who waits takes all");
            const auto two = machines.receive(1, 0, 2, b);
            CHECK(two->done && b == second && machines[1].num_kept_bytes() == 0);
            machines.send(0, 1, 3, first);
            advance();
            CHECK(other->done && c == first);
        }
    }
}

/// The second line of a message comes later.
TEST(match_receives_on_what_has_come_with_its_first_line) {
    Machines machines(2, Over::processes);
    auto given = content(1, 64);
    std::vector<std::byte> got(given.size());
    CHECK(machines.send(0, 1, 1, given)->done);
    const auto &writer = static_cast<ShmTransport &>(*machines.transports[0]);
    auto &second = writer.endpoint(0).ring(Lane::messages, 1)[1].number;
    CHECK(writer.posted(1) == 2 && second == 2);
    second = 0;
    Exchange receive({.peer = 0, .tag = 1, .data = got.data(), .num_bytes = got.size()});
    CHECK(machines[1].may_receive_at_once(receive) && machines[1].receive_at_once(receive) && !receive.done);
    CHECK(got.front() == given.front() && got.back() == std::byte{0} && writer.released(1) == 1);
    machines[1].receive_on(receive);
    CHECK(!receive.done);
    second = 2;
    machines[1].receive_on(receive);
    CHECK(receive.done && got == given && writer.released(1) == 2);
}

TEST(match_receives_at_once_what_comes_in_two_pieces) {
    for (const bool is_late : {false, true}) {
        Machines machines(2, Over::processes);
        auto shorter = content(1, 5000), longer = content(2, 200'000), found = shorter;
        for (int i = 0; i < 3 * is_late; ++i) machines.send(0, 1, 1, shorter); // they leave room for one piece
        const auto sent = machines.send(0, 1, 1, longer);
        machines[0].advance();
        CHECK(sent->done == !is_late);
        for (int i = 0; i < 3 * is_late; ++i) {
            Exchange first({.peer = 0, .tag = 1, .data = found.data(), .num_bytes = found.size()});
            CHECK(machines[1].receive_at_once(first) && first.done && found == shorter);
        }
        found.assign(longer.size(), std::byte{});
        Exchange receive({.peer = 0, .tag = 1, .data = found.data(), .num_bytes = found.size()});
        CHECK(machines[1].may_receive_at_once(receive) && machines[1].receive_at_once(receive));
        CHECK(receive.done == !is_late);
        machines[0].advance();
        machines[1].receive_on(receive);
        CHECK(receive.done && sent->done && found == longer && machines[1].num_kept_bytes() == 0);
    }
}

TEST(match_gives_credit_for_what_was_received_at_once) {
    constexpr int half = ring_size_of(Lane::messages, 2); // as many as a channel holds
    Machines machines(2, Over::threads);
    auto sent = content(1, 8), received = sent;
    const auto send_half = [&] {
        for (int i = 0; i < half; ++i) CHECK(machines.send(0, 1, 1, sent)->done, "it is short, and there is credit");
    };
    send_half();
    for (int i = 0; i < half; ++i) {
        Exchange receive({.peer = 0, .tag = 1, .data = received.data(), .num_bytes = received.size()});
        CHECK(machines[1].may_receive_at_once(receive) && machines[1].receive_at_once(receive));
    }
    machines[0].advance(); // and not the other rank, which may be busy
    for (unsigned kept = 0; kept < Matcher::max_unmatched; kept += half) {
        send_half();
        machines[1].advance();
        machines[1].advance();
        machines[1].advance();
        machines[1].advance(); // each takes so many frames
    }
    CHECK(machines[1].num_kept_bytes() == Matcher::max_unmatched * sent.size());
}

TEST(match_sees_credit_though_the_channel_back_is_full) {
    constexpr int half = ring_size_of(Lane::messages, 2); // as many as a channel holds
    for (Over over : {Over::threads, Over::processes}) {
        Machines machines(2, over);
        auto sent = content(1, 8), received = sent;
        for (int i = 0; i < half; ++i) CHECK(machines.send(1, 0, 1, sent)->done, "which nobody reads");
        for (unsigned before = 0; before < 2 * Matcher::max_unmatched; before += half) {
            for (int i = 0; i < half; ++i) CHECK(machines.send(0, 1, 1, sent)->done, "all before was received");
            for (int i = 0; i < half; ++i) {
                Exchange receive({.peer = 0, .tag = 1, .data = received.data(), .num_bytes = received.size()});
                CHECK(machines[1].may_receive_at_once(receive) && machines[1].receive_at_once(receive));
            }
        }
    }
}

TEST(match_receives_on_what_is_still_growing) {
    Machines machines(2, Over::processes);
    auto *transport = dynamic_cast<ShmTransport *>(machines.transports[0].get());
    auto sent = content(1, piece_bytes), received = sent;
    constexpr std::size_t num_there = 2 * cell_bytes;
    constexpr unsigned num_messages = 3 * Matcher::max_unmatched * short_bytes / piece_bytes;
    for (unsigned message = 0; message < num_messages; ++message) { // so many must have credit
        std::ranges::fill(received, std::byte{});
        CHECK(machines.send(0, 1, 1, sent)->done, message);
        auto &line = transport->endpoint(0).ring(Lane::messages,
                                                 1)[(transport->posted(1) - 1) % ring_size_of(Lane::messages, 2)];
        line.num_cells.store(2);
        Exchange receive({.peer = 0, .tag = 1, .data = received.data(), .num_bytes = received.size()});
        CHECK(machines[1].may_receive_at_once(receive) && machines[1].receive_at_once(receive) && !receive.done);
        machines[1].receive_on(receive);
        CHECK(!receive.done && std::equal(sent.begin(), sent.begin() + num_there, received.begin()));
        CHECK(received[num_there] == std::byte{} && received[num_there + 1] == std::byte{});
        line.num_cells.store(Endpoint::Line::all_cells);
        machines[1].receive_on(receive);
        CHECK(receive.done && received == sent);
        machines[0].advance(); // and never the other rank, which may be busy
    }
}

TEST(match_gives_credit_for_what_has_grown_while_it_was_received_at_once) {
    Machines machines(2, Over::processes);
    Growing growing(*machines.transports[1]);
    Matcher reader(growing, {}, 1, 2);
    auto sent = content(1, piece_bytes), received = sent;
    for (int message = 0; message < 12; ++message) { // more than there is credit for
        std::ranges::fill(received, std::byte{});
        CHECK(machines.send(0, 1, 1, sent)->done, message);
        Exchange receive({.peer = 0, .tag = 1, .data = received.data(), .num_bytes = received.size()});
        CHECK(reader.may_receive_at_once(receive) && reader.receive_at_once(receive));
        CHECK(receive.done && received == sent, message);
        machines[0].advance(); // and never the other rank, which may be busy
    }
}
