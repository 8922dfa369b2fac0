// Messages in memory that the other end reaches: the receiver fetches them, or each end moves one half.

#include "check.h"
#include "matchers.h"

#include <algorithm>
#include <memory>

using namespace hocket;
using namespace hocket::test;

namespace {

/// Wants messages instead of offered memory: a rank that puts or lends anyway makes no progress.
struct Reluctant final : Relay {
    using Relay::Relay;
    MemoryKind memory_of(Bytes, std::span<const int>, bool) override { return MemoryKind::registered; }
    std::uint64_t offer(int, std::span<std::byte>, bool) override { return 1; }
    std::optional<Target> offered(int, std::uint64_t, std::uint64_t) override { return Target{.place = memory.data()}; }

    std::vector<std::byte> memory = std::vector<std::byte>(std::size_t{768} << 10);
};

} // namespace

/// If ranks share cores, the receiver copies a message at once, from any memory, and only control words are sent.
TEST(match_fetches_where_ranks_share_cores) {
    Machines machines(2, Over::crowded);
    const auto &arena = (*machines.world)[0].arena;
    for (const Memory memory : {Memory::huge, Memory::registered}) {
        const std::size_t least = memory == Memory::huge ? machines.profile.fetch_huge : most_bytes_ahead;
        for (const std::size_t size : {least, std::size_t{24} << 20}) {
            for (const bool receiver_first : {false, true}) {
                Buffer bytes(arena, memory, size);
                std::ranges::copy(content(size, size), bytes.data());
                if (memory == Memory::huge) need(Pages::huge, bytes);
                std::vector<std::byte> found(size);
                std::shared_ptr<Exchange> received;
                if (receiver_first) received = machines.receive(1, 0, 5, found);
                const auto posted = machines.transports[0]->posted(1);
                const auto sent =
                    machines.post(0, {.sends = true, .peer = 1, .tag = 5, .data = bytes.data(), .num_bytes = size});
                machines[0].advance();
                CHECK(machines.transports[0]->posted(1) == posted + 2, "an offer, and an announcement");
                if (!receiver_first) received = machines.receive(1, 0, 5, found);
                while (!received->done) CHECK(machines[1].advance());
                CHECK(!sent->done && std::ranges::equal(found, bytes.bytes()));
                machines.settle();
                CHECK(sent->done && machines.transports[0]->posted(1) == posted + 2);
                const auto &transport = static_cast<ShmTransport &>(*machines.transports[0]);
                CHECK(!transport.may_be_used_by(1) && bytes.is_intact());
            }
        }
    }
}

/// An offered message is announced, though it is short enough to go unasked: otherwise its offer would be taken for
/// that of the next message.
TEST(match_announces_what_it_offers) {
    Machines machines(2, Over::crowded, Profile{.fetch_huge = piece_bytes + 1, .shares_cores = true});
    const auto &arena = (*machines.world)[0].arena;
    std::vector<std::unique_ptr<Buffer>> given;
    std::vector<std::vector<std::byte>> found;
    std::vector<std::shared_ptr<Exchange>> all;
    for (const std::size_t size : {std::size_t{1} << 20, eager_bytes, eager_bytes + 1}) {
        const std::size_t number = given.size();
        given.push_back(std::make_unique<Buffer>(arena, number < 2 ? Memory::huge : Memory::small, size));
        std::ranges::copy(content(number, size), given.back()->data());
        all.push_back(machines.post(
            0, {.sends = true, .peer = 1, .tag = number, .data = given.back()->data(), .num_bytes = size}));
        found.emplace_back(size);
    }
    need(Pages::huge, *given[1]);
    for (std::size_t i = 0; i < found.size(); ++i) all.push_back(machines.receive(1, 0, i, found[i]));
    machines.settle();
    for (const auto &exchange : all) CHECK(exchange->done);
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(std::ranges::equal(found[i], given[i]->bytes()), i);
    CHECK(!static_cast<ShmTransport &>(*machines.transports[0]).may_be_used_by(1));
}

/// If each end has a core: private memory in huge pages is copied by the receiver, to whatever memory.
TEST(match_fetches_private_memory) {
    const std::size_t least = measured(false).fetch_huge;
    for (const Memory from : {Memory::huge, Memory::small}) {
        for (const Memory to : {Memory::huge, Memory::owned}) {
            for (const std::size_t size : {least - 1, least, 2 * attached_bytes - 1}) {
                Machines machines(2, Over::apart);
                const Buffer given((*machines.world)[0].arena, from, size), got((*machines.world)[1].arena, to, size);
                need(from == Memory::huge ? Pages::huge : Pages::small, given);
                std::ranges::copy(content(size, size), given.data());
                const auto received = machines.post(1, {.peer = 0, .tag = 5, .data = got.data(), .num_bytes = size});
                const auto sent =
                    machines.post(0, {.sends = true, .peer = 1, .tag = 5, .data = given.data(), .num_bytes = size});
                machines.settle();
                CHECK(received->done && sent->done && std::ranges::equal(got.bytes(), given.bytes()));
                const auto &transport = static_cast<ShmTransport &>(*machines.transports[0]);
                const bool is_fetched = from == Memory::huge && size >= least;
                CHECK((transport.posted(1) == 2) == is_fetched, "an offer, and an announcement", size);
                CHECK(!transport.may_be_used_by(1) && got.is_intact());
            }
        }
    }
}

/// The receiver lets the sender write registered memory, and that writes a part of it from registered memory.
TEST(match_lets_the_sender_write_registered_memory) {
    struct Case {
        Memory from, to;
        std::size_t size;
        bool is_put;
    };
    const std::size_t least = measured(false).halve;
    for (const auto &[from, to, size, is_put] :
         {Case{Memory::registered, Memory::registered, least, true},
          Case{Memory::owned, Memory::registered, least, false},
          Case{Memory::registered, Memory::registered, least - 1, false},
          Case{Memory::owned, Memory::owned, least, false}, Case{Memory::registered, Memory::huge, 2 * least, false}}) {
        Machines machines(2, Over::apart);
        const Buffer given((*machines.world)[0].arena, from, size), got((*machines.world)[1].arena, to, size);
        if (to == Memory::huge) need(Pages::huge, got);
        std::ranges::copy(content(size, size), given.data());
        const auto received = machines.post(1, {.peer = 0, .tag = 5, .data = got.data(), .num_bytes = size});
        const auto sent =
            machines.post(0, {.sends = true, .peer = 1, .tag = 5, .data = given.data(), .num_bytes = size});
        machines.settle();
        CHECK(received->done && sent->done && std::ranges::equal(got.bytes(), given.bytes()) && got.is_intact());
        const auto &transport = static_cast<ShmTransport &>(*machines.transports[0]);
        const std::span lines(transport.endpoint(0).ring(Lane::messages, 1), transport.posted(1));
        const auto is_put_line = [](const Endpoint::Line &line) { return line.tier == Endpoint::Tier::put; };
        CHECK(std::ranges::any_of(lines, is_put_line) == is_put, size);
        CHECK(!transport.may_be_used_by(1));
    }
}

/// A receiver may never come back.
TEST(match_ends_a_receive_when_its_sender_is_told) {
    for (const std::size_t size : {std::size_t{0}, eager_bytes + 1}) {
        Machines machines(2, Over::crowded, Profile{.fetch_huge = size, .shares_cores = true});
        auto shorts = content(2, 8);
        const Buffer bytes((*machines.world)[0].arena, Memory::huge, size);
        std::ranges::copy(content(1, size), bytes.data());
        if (size > 0) need(Pages::huge, bytes);
        std::vector<std::byte> found(size);
        for (unsigned i = 0; i < Matcher::max_unmatched; ++i) machines.send(0, 1, 6, shorts);
        machines.settle();
        const auto sent =
            machines.post(0, {.sends = true, .peer = 1, .tag = 5, .data = bytes.data(), .num_bytes = size});
        machines[0].advance(); // it is announced even if empty, because the others have no receives
        for (std::uint64_t i = 0; i < ring_size_of(Lane::messages, 2); ++i) {
            CHECK(machines.send(1, 0, 7, shorts)->done, "it fills the channel back");
        }
        const auto received = machines.receive(1, 0, 5, found);
        while (machines[1].advance()) continue;
        CHECK(std::ranges::equal(found, bytes.bytes()) && machines[1].waiting_for() == std::vector<int>{0});
        while (!received->done) CHECK(machines[0].advance() && machines[1].advance());
        while (!sent->done) CHECK(machines[0].advance());
    }
}

TEST(match_sends_what_had_better_not_be_written_to_an_offer) {
    Machines machines(2, Over::bytes);
    Reluctant one(*machines.transports[0]), other(*machines.transports[1]);
    machines.replace(0, one);
    machines.replace(1, other);
    auto sent = content(1, one.memory.size());
    std::vector<std::byte> found(sent.size());
    const auto received = machines.receive(1, 0, 5, found);
    machines.send(0, 1, 5, sent);
    machines.settle();
    CHECK(received->done && found == sent);
}
