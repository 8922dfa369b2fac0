// Messages whose receiver copies them where they lie.

#include "check.h"
#include "matchers.h"

#include <algorithm>
#include <memory>

using namespace hocket;
using namespace hocket::test;

namespace {

/// Whether one of the messages from rank 0 to rank 1 shows private memory.
bool is_fetched(const Machines &machines) {
    const auto &transport = static_cast<ShmTransport &>(*machines.transports[0]);
    const std::span lines(transport.endpoint(0).ring(Lane::messages, 1), transport.posted(1));
    return std::ranges::any_of(lines, [](const auto &line) { return line.tier == Endpoint::Tier::attach; });
}

std::size_t num_parts(std::size_t size) { return (size + bytes_at_once - 1) / bytes_at_once; }

} // namespace

/// If ranks share cores, the receiver copies a message where it lies, in parts of a megabyte.
TEST(match_shows_what_it_sends_where_ranks_share_cores) {
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
                // A receive of a long one is there when it goes; of a short one nobody is told.
                const bool is_asked = size > most_awaited_bytes || size <= eager_bytes;
                if (!receiver_first) received = machines.receive(1, 0, 5, found);
                machines.settle();
                CHECK(received->done && sent->done && std::ranges::equal(found, bytes.bytes()) && bytes.is_intact());
                const std::size_t num_posted = machines.transports[0]->posted(1) - posted;
                CHECK(num_posted == num_parts(size) + (is_asked ? 1 : 0), "it is announced if it is asked for", size);
            }
        }
    }
}

/// Some are short enough to go unasked; the receiver keeps them, or copies them where they lie.
TEST(match_shows_private_memory_of_any_length) {
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
}

/// If each end has a core: private memory in huge pages is copied by the receiver, to whatever memory.
TEST(match_fetches_private_memory) {
    const std::size_t least = measured(false).fetch_huge;
    for (const Memory from : {Memory::huge, Memory::small}) {
        for (const Memory to : {Memory::huge, Memory::owned}) {
            for (const std::size_t size : {least - 1, least, 2 * bytes_at_once - 1}) {
                Machines machines(2, Over::apart);
                const Buffer given((*machines.world)[0].arena, from, size), got((*machines.world)[1].arena, to, size);
                need(from == Memory::huge ? Pages::huge : Pages::small, given);
                std::ranges::copy(content(size, size), given.data());
                const auto received = machines.post(1, {.peer = 0, .tag = 5, .data = got.data(), .num_bytes = size});
                const auto sent =
                    machines.post(0, {.sends = true, .peer = 1, .tag = 5, .data = given.data(), .num_bytes = size});
                machines.settle();
                CHECK(received->done && sent->done && std::ranges::equal(got.bytes(), given.bytes()));
                CHECK(is_fetched(machines) == (from == Memory::huge && size >= least), size);
                CHECK(got.is_intact());
            }
        }
    }
}

/// A receiver may never come back.
TEST(match_ends_a_receive_of_nothing_when_its_sender_is_told) {
    Machines machines(2, Over::crowded);
    auto shorts = content(2, 8);
    std::vector<std::byte> nothing;
    for (unsigned i = 0; i < Matcher::max_unmatched; ++i) machines.send(0, 1, 6, shorts);
    machines.settle();
    const auto sent = machines.send(0, 1, 5, nothing);
    machines[0].advance(); // it is announced even if empty, because the others have no receives
    for (std::uint64_t i = 0; i < ring_size_of(Lane::messages, 2); ++i) {
        CHECK(machines.send(1, 0, 7, shorts)->done, "it fills the channel back");
    }
    const auto received = machines.receive(1, 0, 5, nothing);
    while (machines[1].advance()) continue;
    CHECK(machines[1].waiting_for() == std::vector<int>{0});
    while (!received->done) CHECK(machines[0].advance() && machines[1].advance());
    while (!sent->done) CHECK(machines[0].advance());
}
