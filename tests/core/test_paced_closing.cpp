// Over a paced link, a rank may close while its messages are on their way: all are received; a missing message is
// noticed at once.

#include "check.h"
#include "world.h"

#include <array>
#include <numeric>

using namespace hocket;
using namespace hocket::test;
using namespace std::chrono_literals;

namespace {

constexpr WorldOptions slow{.bytes_per_second = 1e9, .latency = 20ms};

/// A call of one element.
void call(Rank &rank, const Fixture &plans) {
    std::array<std::int64_t, 8> input{1}, output{};
    rank.communicator().run(call_of(plans, rank.rank, Dtype::int64, Op::sum, 1,
                                    reinterpret_cast<const std::byte *>(input.data()),
                                    reinterpret_cast<std::byte *>(output.data())),
                            do_nothing);
}

Message send_of(std::vector<std::byte> &bytes, int peer, std::uint64_t tag) {
    return {.sends = true, .peer = peer, .tag = tag, .data = bytes.data(), .num_bytes = bytes.size()};
}

Message receive_of(std::vector<std::byte> &bytes, int peer, std::uint64_t tag) {
    return {.peer = peer, .tag = tag, .data = bytes.data(), .num_bytes = bytes.size()};
}

void run(Rank &rank, std::span<const Message> messages) {
    rank.communicator().messages().run(messages, patience, do_nothing);
}

/// Fails because `closed` has closed, long before its timeout.
void check_is_missed(int closed, const std::function<void()> &action) {
    const auto start = Clock::now();
    const auto failure = failure_of(action);
    CHECK(failure && failure->cause == Cause::aborted && failure->rank == closed);
    CHECK(failure->missing == std::vector{closed}, failure->text);
    CHECK(Clock::now() - start < patience / 4);
}

void check_ends_well(Rank &rank) {
    const auto failure = failure_of([&] { rank.communicator().close(do_nothing); });
    CHECK(!failure, failure->text);
}

} // namespace

TEST(paced_ranks_close_behind_their_last_call) {
    for (const char *collective : {"barrier", "broadcast", "reduce", "all_gather", "all_reduce"}) {
        for (const Fixture &plans : fixtures()) {
            if (plans.collective != collective || plans.num_ranks != 4 || plans.in_place || plans.uneven) continue;
            World world(4, slow);
            world.run([&](Rank &rank) {
                call(rank, plans);
                check_ends_well(rank);
            });
        }
    }
}

TEST(paced_calls_before_the_close_of_a_root_are_received_and_no_more) {
    constexpr int num_calls = 5;
    const Fixture &plans = fixture("broadcast", "direct", 2);
    World world(2, slow);
    world.run([&](Rank &rank) {
        for (int i = 0; i < num_calls; ++i) call(rank, plans);
        if (rank.rank == plans.root) return check_ends_well(rank);
        check_is_missed(plans.root, [&] { call(rank, plans); });
    });
}

TEST(paced_messages_before_a_close_are_received_and_no_more) {
    for (const bool in_batch : {false, true}) {
        World world(2, slow);
        world.run([&](Rank &rank) {
            std::array<std::vector<std::byte>, 3> buffers;
            std::array<Message, 3> messages;
            for (std::size_t i = 0; i < buffers.size(); ++i) {
                buffers[i].assign(1000 * i + 8, static_cast<std::byte>(rank.rank + 1));
                const std::uint64_t tag = buffers.size() - i; // so a batch is not received in its own order
                messages[i] = rank.rank == 0 ? send_of(buffers[i], 1, tag) : receive_of(buffers[i], 0, tag);
            }
            if (in_batch) run(rank, messages);
            else
                for (const Message &message : messages) run(rank, {&message, 1});
            for (const auto &bytes : buffers) CHECK(bytes.front() == std::byte{1} && bytes.back() == std::byte{1});
            if (rank.rank == 0) return check_ends_well(rank);
            check_is_missed(0, [&] { run(rank, messages); });
        });
    }
}

TEST(paced_batch_that_is_sent_in_part_before_a_close_is_missed) {
    World world(2, slow);
    world.run([&](Rank &rank) {
        std::vector<std::byte> first(3000), second(8);
        if (rank.rank == 0) {
            first.assign(first.size(), std::byte{1});
            const Message message = send_of(first, 1, 1);
            run(rank, {&message, 1});
            world.meet();
            return rank.communicator().finish(do_nothing);
        }
        world.meet();
        const std::array<Message, 2> both{receive_of(second, 0, 2), receive_of(first, 0, 1)};
        check_is_missed(0, [&] { run(rank, both); });
        CHECK(first.front() == std::byte{1} && first.back() == std::byte{1}, "which had been sent");
    });
}

TEST(paced_message_of_one_that_is_open_is_awaited_though_another_has_closed) {
    World world(3, slow);
    world.run([&](Rank &rank) {
        std::vector<std::byte> bytes(8, static_cast<std::byte>(rank.rank));
        if (rank.rank != 0) {
            const Message message = send_of(bytes, 0, 1);
            if (rank.rank == 1) run(rank, {&message, 1});
            return rank.communicator().finish(do_nothing);
        }
        const Message message = receive_of(bytes, any_source, 1);
        run(rank, {&message, 1});
        CHECK(bytes.front() == std::byte{1});
        check_is_missed(1, [&] { run(rank, {&message, 1}); });
    });
}

TEST(paced_send_ends_though_who_received_it_has_closed) {
    // More empty messages than a receiver keeps unasked: the receiver has them all before the sender knows it.
    constexpr std::size_t num_messages = Matcher::max_unmatched + 1;
    World world(2, slow);
    world.run([&](Rank &rank) {
        std::vector<std::byte> nothing, last(8);
        const bool sends = rank.rank == 0;
        const int peer = 1 - rank.rank;
        std::vector<Message> messages(num_messages, sends ? send_of(nothing, peer, 1) : receive_of(nothing, peer, 1));
        const Message end = sends ? send_of(last, peer, 2) : receive_of(last, peer, 2);
        if (sends) messages.push_back(end);
        else run(rank, {&end, 1}); // so all other messages have arrived
        run(rank, messages);
        if (!sends) rank.communicator().finish(do_nothing);
        world.meet();
    });
}
