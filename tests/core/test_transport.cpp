// The contract of transports: each function on each implementation, with all ranks in one thread.

#include "check.h"
#include "transport/byte_stream.h"
#include "transport/carrier.h"
#include "transport/tcp/tcp.h"
#include "world.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <sys/socket.h>
#include <vector>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr std::uint32_t tag = 7;

/// The ends of all ranks. `sockets`: those of the system within a process, which deliver at once. `mixed`: rank 0 and 1
/// share memory, and each reaches rank 2 by single bytes. `rails`: three sockets for each channel.
enum class Over { bytes, sockets, rails, threads, processes, attached, paced, mixed };

bool is_connected(Over over) { return over == Over::sockets || over == Over::rails; }

NetworkThread &network_thread() {
    static NetworkThread thread;
    return thread;
}

std::vector<std::unique_ptr<TcpTransport>> joined_by_sockets(int num_ranks, int num_rails) {
    std::vector<std::unique_ptr<TcpTransport>> ends;
    for (int rank = 0; rank < num_ranks; ++rank) {
        ends.push_back(std::make_unique<TcpTransport>(network_thread(), num_ranks, [](int) {}, [] {}));
    }
    for (int from = 0; from < num_ranks; ++from) {
        for (int to = 0; to < num_ranks; ++to) {
            for (int rail = 0; from != to && rail < num_rails; ++rail) {
                std::array<int, 2> pair{};
                CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) == 0);
                ends[from]->connect_to(to, pair[0], {rail, num_rails});
                ends[to]->connect_from(from, pair[1], {}, {rail, num_rails});
            }
        }
    }
    return ends;
}

struct Ends {
    explicit Ends(Over over, int num_ranks = 3) {
        const auto streams = std::make_shared<ByteStreams>(num_ranks);
        if (is_connected(over)) {
            for (auto &end : joined_by_sockets(num_ranks, over == Over::rails ? 3 : 1)) {
                all.push_back(end.get());
                owned.push_back(std::move(end));
            }
            return;
        }
        if (over != Over::bytes) {
            world = std::make_unique<World>(num_ranks, WorldOptions{.as_processes = over != Over::threads,
                                                                    .may_attach = over == Over::attached,
                                                                    .bytes_per_second = over == Over::paced ? 1e9 : 0,
                                                                    .latency = std::chrono::microseconds(50)});
        }
        for (int rank = 0; rank < num_ranks; ++rank) {
            if (over == Over::bytes || over == Over::mixed) {
                owned.push_back(std::make_unique<ByteStreamTransport>(streams, rank));
                all.push_back(owned.back().get());
            }
            if (over == Over::bytes) continue;
            Transport &memory = (*world)[rank].communicator().carrier();
            if (over != Over::mixed) {
                all.push_back(&memory);
                continue;
            }
            std::vector<int> via(static_cast<std::size_t>(num_ranks), rank == 2 ? 1 : 0);
            via[2] = 1;
            owned.push_back(std::make_unique<Carrier>(std::vector<Transport *>{&memory, all.back()}, via));
            all.back() = owned.back().get();
        }
    }

    Transport &operator[](int rank) { return *all[static_cast<std::size_t>(rank)]; }

    std::unique_ptr<World> world;
    std::vector<std::unique_ptr<Transport>> owned;
    std::vector<Transport *> all;
};

constexpr std::array every{Over::bytes,     Over::sockets,  Over::rails, Over::threads,
                           Over::processes, Over::attached, Over::paced, Over::mixed};

/// Waits, as what is on a slow link comes in time.
View await(Transport &reader, int peer) {
    const auto limit = Clock::now() + patience;
    for (;;) {
        const View view = reader.view(peer);
        if (!view.bytes.empty()) return view;
        CHECK(Clock::now() < limit, "nothing comes from rank", peer);
    }
}

/// Reads so many bytes in parts, first by copies and then from the views themselves.
std::vector<std::byte> read(Transport &reader, int peer, std::size_t num_bytes) {
    std::vector<std::byte> found;
    while (found.size() < num_bytes) {
        const View view = await(reader, peer);
        CHECK(view.tag == tag);
        const std::size_t part = std::min({view.bytes.size(), num_bytes - found.size(), std::size_t{1} << 16});
        const std::size_t before = found.size();
        found.resize(before + part);
        CHECK(reader.copy(peer, found.data() + before, part));
        if (!view.attached) CHECK(std::equal(view.bytes.begin(), view.bytes.begin() + part, found.begin() + before));
        reader.release(peer, part);
        reader.flush();
    }
    return found;
}

/// Posts all, while the peers read it; what they have read, in order of `peers`.
std::vector<std::vector<std::byte>> carry(Ends &ends, int from, std::vector<int> peers, Bytes bytes, Way way) {
    std::vector<std::vector<std::byte>> found(peers.size());
    Transport &writer = ends[from];
    for (std::size_t sent = 0; sent < bytes.size();) {
        const Taken taken = writer.post(peers, bytes.subspan(sent), tag, {.way = way});
        CHECK(taken.num_bytes > 0 && taken.num_bytes <= bytes.size() - sent, "each channel is empty here");
        CHECK(!taken.lent || way == Way::lend || way == Way::fetch || way == Way::stream);
        writer.flush();
        for (std::size_t i = 0; i < peers.size(); ++i) {
            CHECK(!taken.lent || writer.released(peers[i]) < writer.posted(peers[i]), "it is still being read");
            const auto part = read(ends[peers[i]], from, taken.num_bytes);
            found[i].insert(found[i].end(), part.begin(), part.end());
            CHECK(writer.released(peers[i]) == writer.posted(peers[i]));
        }
        sent += taken.num_bytes;
    }
    return found;
}

} // namespace

TEST(transports_carry_bytes_of_any_length_in_any_way) {
    for (const Over over : every) {
        Ends ends(over);
        for (const Way way : {Way::line, Way::stage, Way::lend, Way::fetch, Way::stream}) {
            for (const std::size_t size : {1UL, 48UL, 49UL, 96UL, 97UL, 4096UL, 4097UL, 131'073UL, 300'000UL}) {
                if (size > 4097 && (over == Over::bytes || over == Over::mixed)) continue;
                const auto bytes = counted(size, size % 251);
                for (const int from : {0, 2}) {
                    ends[from].prepare(1, size);
                    for (const auto &found : carry(ends, from, {1}, bytes, way)) CHECK(found == bytes, size, from);
                }
                if (over == Over::mixed) continue;
                for (const auto &found : carry(ends, 1, {0, 2}, bytes, way)) CHECK(found == bytes, size);
            }
        }
    }
}

TEST(transports_put_a_head_before_bytes) {
    for (const Over over : every) {
        Ends ends(over);
        for (const std::size_t size : {1UL, 24UL, 72UL, 73UL, 1000UL}) {
            const std::size_t most = ends[0].reach(std::array{1}).head_bytes;
            const auto head = counted(std::min<std::size_t>(most, 24), 100), bytes = counted(size);
            const Taken taken = ends[0].post(std::array{1}, bytes, tag, {.head = head});
            CHECK(taken.num_bytes > 0);
            ends[0].flush();
            auto expected = head;
            expected.insert(expected.end(), bytes.begin(),
                            bytes.begin() + static_cast<std::ptrdiff_t>(taken.num_bytes));
            CHECK(read(ends[1], 0, expected.size()) == expected, size);
        }
    }
}

TEST(transports_change_nothing_when_they_are_looked_at) {
    for (const Over over : every) {
        Ends ends(over);
        const auto bytes = counted(1000);
        const Taken taken = ends[0].post(std::array{1}, bytes, tag, {});
        const std::uint64_t posted = ends[0].posted(1);
        for (int i = 0; i < 3; ++i) {
            const View view = await(ends[1], 0);
            CHECK(view.bytes[0] == bytes[0] && view.tag == tag && ends[1].view(2).bytes.empty());
        }
        CHECK(ends[0].posted(1) == posted && ends[1].posted(0) == 0);
        CHECK(ends[0].released(1) == (is_connected(over) ? posted : 0), "the system holds what is in a socket");
        CHECK(read(ends[1], 0, taken.num_bytes).size() == taken.num_bytes && ends[0].released(1) == posted);
    }
}

/// A channel that nobody reads gives no credit in the end, and none of the others notices.
TEST(transports_refuse_what_has_no_room_and_tell_numbers_all_the_same) {
    for (const Over over : every) {
        Ends ends(over);
        const auto bytes = counted(1000);
        std::size_t num_sent = 0;
        while (const std::size_t taken = ends[0].post(std::array{1}, bytes, tag, {}).num_bytes) {
            num_sent += taken;
            ends[0].flush();
        }
        CHECK(num_sent > 0 && ends[0].posted(1) > ends[0].released(1));
        const auto one = counted(1);
        CHECK(ends[0].post(std::array{2}, one, tag, {}).num_bytes == 1, "another channel has room");
        ends[0].tell(1, 5);
        ends[0].tell(1, 12'345);
        ends[0].flush();
        CHECK(ends[1].told(0) == 12'345 && ends[2].told(0) == 0 && ends[0].told(1) == 0);
        CHECK(read(ends[2], 0, 1) == one);
        CHECK(read(ends[1], 0, num_sent).size() == num_sent);
        CHECK(ends[0].post(std::array{1}, one, tag, {}).num_bytes == 1, "there is room again");
        CHECK(read(ends[1], 0, 1) == one);
    }
}

TEST(transports_say_what_is_on_its_way) {
    for (const Over over : every) {
        Ends ends(over);
        if (is_connected(over)) continue; // nobody knows what is still inside
        CHECK(!ends[1].is_coming(0) && ends[1].until_arrival(Clock::now()) == std::chrono::nanoseconds::max());
        const auto since = Clock::now();
        CHECK(ends[0].post(std::array{1}, counted(1), tag, {}).num_bytes == 1);
        ends[0].flush();
        const bool is_hidden = ends[1].view(0).bytes.empty();
        CHECK(over == Over::paced || !is_hidden);
        if (is_hidden) CHECK(ends[1].is_coming(0) || !ends[1].view(0).bytes.empty(), "it comes, or has come meanwhile");
        if (is_hidden) CHECK(ends[1].until_arrival(since) <= std::chrono::microseconds(100));
        await(ends[1], 0);
        CHECK(!ends[1].is_coming(0));
    }
}

TEST(windows_are_written_by_their_peer_until_they_are_withdrawn) {
    for (const Over over : every) {
        Ends ends(over);
        Windows *const writer = ends[0].windows(), *const reader = ends[1].windows();
        CHECK((writer == nullptr) == (over == Over::bytes || is_connected(over) || over == Over::paced));
        if (writer == nullptr) continue;
        const std::size_t size = 10'000;
        Buffer memory((*ends.world)[1].arena, Memory::registered, size);
        const Window window{.step = 3, .order = 2, .place = memory.data(), .num_bytes = size};
        CHECK(writer->granted(1, tag, 0).empty() && !reader->may_be_written_by(0));
        reader->grant(0, tag, std::span(&window, 1));
        const auto found = writer->granted(1, tag, 0);
        CHECK(found.size() == 1 && found[0].step == 3 && found[0].order == 2 && found[0].num_bytes == size);
        CHECK(reader->may_be_written_by(0) && !reader->may_be_written_by(2));
        std::byte *const place = found[0].place;
        const auto bytes = counted(size);
        CHECK(writer->put(std::array{1}, std::span(&place, 1), bytes, tag, false));
        ends[0].flush();
        CHECK(await(ends[1], 0).bytes.data() == memory.data() && read(ends[1], 0, size) == bytes);
        reader->revoke();
        CHECK(!reader->may_be_written_by(0) && memory.is_intact());
        reader->grant(0, tag + 1, std::span(&window, 1));
        CHECK(writer->granted(1, tag + 1, 1).size() == 1);
        ends[1].withdraw();
        CHECK(!writer->put(std::array{1}, std::span(&place, 1), bytes, tag + 1, false), "nobody begins to write");
        CHECK(reader->may_be_written_by(0), "but may have begun");
        // Of a peer that is reached another way nobody knows a window.
        if (over == Over::mixed) {
            ends[2].windows()->grant(0, tag, std::span(&window, 1));
            CHECK(writer->granted(2, tag, 0).empty() && !ends[2].windows()->may_be_written_by(0));
        }
    }
}

TEST(a_carrier_takes_no_post_to_peers_of_several_transports) {
    Ends ends(Over::mixed);
    const auto failure = failure_of([&] { ends[0].post(std::array{1, 2}, counted(1), tag, {}); });
    CHECK(failure && failure->text.find("several transports") != std::string::npos);
    CHECK(ends[0].reach(std::array{1}).via == 0 && ends[0].reach(std::array{2}).via == 1);
    const Reach all = ends[0].reach(std::array{1, 2});
    CHECK(all.is_stream && !all.may_put && !all.whole_pieces && all.head_bytes == 0 && all.line_bytes == 0);
    CHECK(failure_of([] { const Carrier nothing({}, {0}); }).has_value());
}

/// Each channel has its own messages in the same order, whatever shares a post.
TEST(plans_are_split_by_the_transport_of_each_peer) {
    for (const Fixture &one : fixtures()) {
        for (const auto &plan : one.plans) {
            CHECK(plan->split([](int) { return 3; }) == nullptr);
            const auto split = plan->split([](int peer) { return peer % 2; });
            if (!split) continue;
            const auto messages_of = [&](const Plan &whole) {
                std::map<int, std::vector<std::array<std::int32_t, 3>>> found;
                for (const Instruction &next : whole.instructions()) {
                    if (!next.sends()) continue;
                    for (const Operand &to : next.destinations)
                        found[to.peer].push_back({next.step, to.index, next.row});
                }
                for (auto &[peer, messages] : found) std::ranges::sort(messages);
                return found;
            };
            CHECK(messages_of(*split) == messages_of(*plan), one.name());
            for (const Instruction &next : split->instructions()) {
                const Instruction &whole = plan->instructions()[static_cast<std::size_t>(next.row)];
                CHECK(next.step == whole.step && next.chunk == whole.chunk &&
                      next.sources.size() == whole.sources.size());
                for (const Operand &to : next.destinations)
                    CHECK(!next.sends() || to.peer % 2 == next.destinations[0].peer % 2);
                std::set<std::int32_t> before, expected;
                for (const auto number : next.dependencies)
                    before.insert(split->instructions()[static_cast<std::size_t>(number)].row);
                expected.insert(whole.dependencies.begin(), whole.dependencies.end());
                CHECK(before == expected, "it waits for all parts of what it waited for");
            }
        }
    }
}
