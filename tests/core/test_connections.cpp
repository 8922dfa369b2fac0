// Ranks that are joined by sockets: frames as they come, and whole calls and messages, with their network threads.

#include "check.h"
#include "transport/tcp/receiver.h"
#include "transport/tcp/tcp.h"
#include "world.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <random>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

using namespace hocket;
using namespace hocket::test;
using namespace std::chrono_literals;

namespace {

struct Pair {
    Pair() { CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0); }
    std::array<int, 2> ends{};
};

std::vector<std::byte> frame_of(std::uint32_t tag, Bytes bytes) {
    const FrameHeader header{.tag = tag, .num_bytes = static_cast<std::uint32_t>(bytes.size())};
    std::vector<std::byte> all(header.num_in_all());
    std::memcpy(all.data(), &header, sizeof header);
    std::ranges::copy(bytes, all.begin() + sizeof header);
    return all;
}

/// Writes all, and reads frames meanwhile, which must be these.
void check_reader(const std::vector<std::vector<std::byte>> &frames, std::size_t at_once, std::mt19937 &choose) {
    const Pair pair;
    Receiver receiver(pair.ends[1]);
    std::vector<std::byte> all;
    for (std::size_t i = 0; i < frames.size(); ++i) {
        const auto one = frame_of(static_cast<std::uint32_t>(i), frames[i]);
        all.insert(all.end(), one.begin(), one.end());
    }
    std::size_t sent = 0, number = 0, read = 0;
    while (number < frames.size()) {
        const std::size_t next = std::min(at_once, all.size() - sent);
        const ssize_t taken = next == 0 ? 0 : ::send(pair.ends[0], all.data() + sent, next, MSG_DONTWAIT);
        if (taken > 0) sent += static_cast<std::size_t>(taken);
        View view;
        CHECK(receiver.look(view));
        if (view.bytes.empty()) continue;
        const std::vector<std::byte> &expected = frames[number];
        CHECK(view.tag == number && read + view.bytes.size() + view.num_coming == expected.size());
        CHECK(reinterpret_cast<std::uintptr_t>(view.bytes.data() - read) % 8 == 0, "elements are aligned");
        CHECK(std::ranges::equal(view.bytes, Bytes(expected).subspan(read, view.bytes.size())), number, read);
        const std::size_t part = 1 + choose() % view.bytes.size();
        receiver.release(part);
        read += part;
        if (read < expected.size()) continue;
        ++number;
        read = 0;
    }
    CHECK(!receiver.has_ended());
    ::close(pair.ends[0]);
    View view;
    CHECK(receiver.look(view) && view.bytes.empty() && receiver.has_ended());
    ::close(pair.ends[1]);
}

} // namespace

TEST(frames_of_all_lengths_are_read_however_they_come) {
    std::mt19937 choose(7);
    for (const std::size_t at_once : {1UL, 7UL, 4096UL, 100'000UL, 1'000'000UL}) {
        std::vector<std::vector<std::byte>> frames;
        const std::size_t longest = at_once < 4096 ? 3000 : FrameHeader::most_bytes;
        for (int i = 0; i < 60; ++i)
            frames.push_back(counted(i % 3 == 0 ? longest - i : 1 + choose() % longest, choose()));
        check_reader(frames, at_once, choose);
    }
}

TEST(what_is_no_frame_is_refused) {
    for (const std::uint32_t num_bytes : {0U, static_cast<std::uint32_t>(FrameHeader::most_bytes + 1), 0xffffffffU}) {
        const Pair pair;
        const FrameHeader header{.tag = 1, .num_bytes = num_bytes};
        CHECK(::send(pair.ends[0], &header, sizeof header, 0) == sizeof header);
        Receiver receiver(pair.ends[1]);
        View view;
        CHECK(!receiver.look(view) && view.bytes.empty(), num_bytes);
        for (const int end : pair.ends) ::close(end);
    }
}

TEST(of_numbers_the_last_one_counts) {
    const Pair pair;
    Sender sender(pair.ends[0]);
    NumberReceiver receiver(pair.ends[1]);
    CHECK(receiver.latest() == 0);
    std::uint64_t number = 0;
    while (!sender.has_rest()) sender.send_latest(++number); // until the system takes no more
    for (int i = 0; i < 1000; ++i) sender.send_latest(++number);
    while (receiver.latest() < number) sender.push();
    CHECK(receiver.latest() == number && !sender.has_rest());
    ::close(pair.ends[1]);
}

/// What is lent is sent from its place until that is to change.
TEST(what_the_system_does_not_take_is_lent_or_copied) {
    for (const bool may_lend : {false, true}) {
        const Pair pair;
        Sender sender(pair.ends[0]);
        auto bytes = counted(3'000'000);
        const auto expected = bytes;
        CHECK(sender.send({}, bytes, {}, may_lend) == may_lend);
        CHECK(sender.has_rest() && !sender.push());
        sender.end_loan();
        std::ranges::fill(bytes, std::byte{0xee});
        std::vector<std::byte> found(bytes.size());
        for (std::size_t read = 0; read < found.size();) {
            sender.push();
            const ssize_t part = ::recv(pair.ends[1], found.data() + read, found.size() - read, MSG_DONTWAIT);
            if (part > 0) read += static_cast<std::size_t>(part);
        }
        CHECK(found == expected && !sender.has_rest());
        ::close(pair.ends[1]);
    }
}

TEST(who_ends_shows_that_behind_the_last_byte) {
    NetworkThread thread;
    TcpTransport one(thread, 2, [](int) {}, [] {}), other(thread, 2, [](int) {}, [] {});
    const Pair pair;
    one.connect_to(1, pair.ends[0]);
    other.connect_from(0, pair.ends[1]);
    const auto bytes = counted(100);
    CHECK(one.post(std::array{1}, bytes, 7, {}).num_bytes == 100);
    CHECK(!one.is_broken(1) && !other.is_broken(0));
    one.end();
    CHECK(!other.is_coming(0), "it is there");
    CHECK(std::ranges::equal(other.view(0).bytes, bytes) && !other.is_broken(0));
    other.release(0, 100);
    CHECK(other.view(0).bytes.empty() && !other.is_coming(0) && other.is_broken(0));
}

TEST(a_peer_that_is_gone_takes_nothing_and_keeps_nothing) {
    NetworkThread thread;
    TcpTransport one(thread, 2, [](int) {}, [] {});
    const Pair pair;
    one.connect_to(1, pair.ends[0]);
    ::close(pair.ends[1]);
    const auto bytes = counted(piece_bytes);
    for (int i = 0; i < 100; ++i) {
        one.post(std::array{1}, bytes, 7, {.way = Way::stream});
        one.flush();
    }
    CHECK(one.released(1) == one.posted(1), "nothing of it is lent");
    CHECK(!one.has_delivered(1) && one.is_broken(1) && one.awaits_room(1), "but it is lost, and nothing follows");
}

TEST(a_rank_that_only_waits_for_a_number_sees_that_the_way_is_broken) {
    NetworkThread thread;
    TcpTransport one(thread, 2, [](int) {}, [] {});
    const Pair pair;
    one.connect_to(1, pair.ends[0]);
    CHECK(!one.is_broken(1) && !one.awaits_room(1));
    ::close(pair.ends[1]);
    CHECK(one.is_broken(1) && one.awaits_room(1));
}

/// What the first of two rails does not take holds up its own frames only, until their turn comes.
TEST(frames_take_turns_on_the_rails) {
    NetworkThread thread;
    TcpTransport one(thread, 2, [](int) {}, [] {}), other(thread, 2, [](int) {}, [] {});
    const std::array<Pair, 2> rails;
    const auto bytes = counted(piece_bytes);
    one.connect_to(1, rails[1].ends[0], {1, 2});
    CHECK(one.post(std::array{1}, bytes, 7, {}).num_bytes == 0, "a rail is still missing");
    one.connect_to(1, rails[0].ends[0], {0, 2});
    other.connect_from(0, rails[0].ends[1], {}, {0, 2});
    other.connect_from(0, rails[1].ends[1], {}, {1, 2});
    const std::array<Pair, 1> another;
    other.connect_from(0, another[0].ends[1], {}, {0, 2});
    std::byte first{};
    CHECK(recv(another[0].ends[0], &first, 1, 0) == 0, "a second connection of a rail is closed");
    ::close(another[0].ends[0]);

    const Manner lent{.way = Way::stream};
    while (one.post(std::array{1}, bytes, 7, lent).num_bytes > 0) one.flush();
    const std::uint64_t num_posted = one.posted(1), num_released = one.released(1);
    CHECK(num_released < num_posted && num_posted - num_released <= 2, num_released, "of", num_posted);
    for (std::uint64_t frame = 0; frame < num_posted; ++frame) {
        for (std::size_t read = 0; read < bytes.size();) {
            const View view = other.view(0);
            CHECK(std::ranges::equal(view.bytes, Bytes(bytes).subspan(read, view.bytes.size())));
            other.release(0, view.bytes.size());
            read += view.bytes.size();
            one.released(1);
        }
    }
    CHECK(one.released(1) == num_posted && other.view(0).bytes.empty() && !other.is_broken(0));
}

TEST(a_rail_that_ends_breaks_the_whole_way) {
    NetworkThread thread;
    TcpTransport one(thread, 2, [](int) {}, [] {}), other(thread, 2, [](int) {}, [] {});
    const std::array<Pair, 2> rails;
    const Pair given_up;
    other.connect_from(0, given_up.ends[1], {}, {1, 2});
    for (int rail = 1; rail >= 0; --rail) {
        one.connect_to(1, rails[static_cast<std::size_t>(rail)].ends[0], {rail, 2});
        other.connect_from(0, rails[static_cast<std::size_t>(rail)].ends[1], {}, {rail, 2});
    }
    const auto bytes = counted(100);
    for (int frame = 0; frame < 2; ++frame) {
        CHECK(one.post(std::array{1}, bytes, 7, {}).num_bytes == bytes.size());
        CHECK(std::ranges::equal(other.view(0).bytes, bytes),
              "the second connection of a rail took the first one's place");
        other.release(0, bytes.size());
    }
    CHECK(!one.is_broken(1) && !other.is_broken(0));
    CHECK(::shutdown(rails[1].ends[1], SHUT_RDWR) == 0);
    CHECK(one.is_broken(1), "though nothing is posted that would go there");
    ::close(given_up.ends[0]);
}

TEST(fixtures_over_connections) {
    for (const auto &[num_ranks, num_rails] : {std::pair{2, 1}, {3, 2}, {5, 1}}) {
        World world(num_ranks, {.as_processes = true, .over_connections = true, .num_rails = num_rails});
        world.run([&](Rank &rank) {
            run_fixtures(rank);
            rank.communicator().close(do_nothing);
        });
    }
}

TEST(messages_of_all_sizes_go_through_connections) {
    for (const bool spin : {false, true}) {
        World world(2, {.spin = spin, .over_connections = true});
        world.run([&](Rank &rank) {
            for (const std::size_t size : {1UL, 3000UL, 100'000UL, 300'000UL, 9 * piece_bytes}) {
                for (const int peer : {1 - rank.rank, rank.rank}) { // the other one, and itself
                    const auto sent = counted(size, static_cast<std::size_t>(rank.rank));
                    std::vector<std::byte> found(size);
                    const std::array<Message, 2> both{
                        Message{.sends = true,
                                .peer = peer,
                                .tag = 3,
                                .data = const_cast<std::byte *>(sent.data()),
                                .num_bytes = size},
                        Message{.sends = false, .peer = peer, .tag = 3, .data = found.data(), .num_bytes = size}};
                    rank.communicator().messages().run(both, patience, do_nothing);
                    CHECK(found == counted(size, static_cast<std::size_t>(peer)), size);
                }
            }
            rank.communicator().close(do_nothing);
        });
    }
}

/// A late rank finds the others asleep, and what it sends wakes them.
TEST(what_comes_through_connections_wakes_who_sleeps) {
    World world(3, {.over_connections = true});
    const Fixture &plans = fixture("all_reduce", "ring", 3);
    const auto begun = Clock::now();
    world.run([&](Rank &rank) {
        for (int round = 0; round < 12; ++round) {
            if (rank.rank == round % 3) std::this_thread::sleep_for(30ms); // the others sleep by then
            std::vector<std::int64_t> input(10'000, rank.rank + 1), output(10'000);
            rank.communicator().run(call_of(plans, rank.rank, Dtype::int64, Op::sum, 10'000,
                                            reinterpret_cast<const std::byte *>(input.data()),
                                            reinterpret_cast<std::byte *>(output.data())),
                                    do_nothing);
            CHECK(std::ranges::count(output, 6) == 10'000);
        }
        rank.communicator().close(do_nothing);
    });
    CHECK(Clock::now() - begun < 12 * attention, "who is not woken looks ten times a second");
}
