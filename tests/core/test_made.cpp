// Data that is made while it is sent: a fold whose result goes to the slot of its readers in the same pass. Puts of
// such data are in test_puts.cpp.

#include "check.h"
#include "executor/executor.h"
#include "world.h"

#include <algorithm>
#include <array>
#include <cstring>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr std::uint32_t tag = 7;
constexpr std::byte made{5};

/// Always shows the same bytes, and accepts everything.
class Endless final : public Transport {
  public:
    Published publish(std::span<const int>, Bytes bytes, std::uint32_t, bool) override {
        num_published += std::min(bytes.size(), piece_bytes);
        return {.num_bytes = std::min(bytes.size(), piece_bytes)};
    }
    bool publish_made(std::span<const int>, Bytes bytes, std::uint32_t, const Making &make) override {
        const std::size_t before = slots.size(), half = bytes.size() / 2 / cache_line * cache_line;
        slots.resize(before + bytes.size());
        make(0, half, slots.data() + before);
        make(half, bytes.size() - half, slots.data() + before + half);
        return true;
    }
    bool could_lend(Bytes) const override { return lends; }
    bool awaits_handed(int, std::size_t) const override { return num_published >= awaits_after; }
    std::uint64_t posted(int) const override { return 0; }
    std::uint64_t released(int) const override { return 0; }
    View view(int) override { return {.bytes = Bytes(shown).first(num_shown), .tag = tag}; }
    void release(int, std::size_t) override {}

    std::vector<std::byte> shown = std::vector<std::byte>(piece_bytes, made), slots;
    std::size_t num_shown = piece_bytes, num_published = 0, awaits_after = SIZE_MAX; // bytes that are published
    bool lends = false;
};

} // namespace

TEST(made_is_what_a_fold_sends_on_if_it_is_staged) {
    constexpr std::size_t num_elements = (std::size_t{2} << 20) / sizeof(std::int64_t) / 2;
    struct Run {
        const char *what;
        std::size_t block, least_bytes_past_caches = std::size_t{16} << 20, num_shown = piece_bytes;
        bool lends = false, is_made = false, awaits = false;
    };
    // In place, with two ranks: this rank folds and sends the first half, the peer the other half.
    const Fixture &two_shot = fixture("all_reduce", "direct_two_shot", 2, 0, true);
    for (const Run &run : {
             Run{.what = "all ranks have 2 MiB", .block = num_elements, .is_made = true},
             Run{.what = "and of an odd number of bytes", .block = num_elements + 1101, .is_made = true},
             Run{.what = "own caches hold it", .block = num_elements - 8},
             Run{.what = "no cache does", .block = num_elements, .least_bytes_past_caches = std::size_t{2} << 20},
             Run{.what = "it is lent", .block = num_elements, .lends = true},
             Run{.what = "a slot is awaited, until none is to come", .block = num_elements, .awaits = true},
             Run{.what = "pieces come in parts", .block = num_elements, .num_shown = piece_bytes / 2},
         }) {
        Endless transport;
        transport.lends = run.lends;
        if (run.awaits) transport.awaits_after = run.block / 2 * sizeof(std::int64_t); // the half that the peer folds
        transport.num_shown = run.num_shown;
        std::vector<std::int64_t> memory(run.block, 3);
        Executor executor(*two_shot.plans[0], transport, run.least_bytes_past_caches);
        auto *const bytes = reinterpret_cast<std::byte *>(memory.data());
        executor.start(
            {.dtype = Dtype::int64, .op = Op::sum, .block = run.block, .input = bytes, .output = bytes, .tag = tag});
        for (int turn = 0; !executor.advance(); ++turn) CHECK(turn < 1000, run.what);
        std::int64_t operand = 0;
        std::memcpy(&operand, transport.shown.data(), sizeof operand);
        const std::size_t half = run.block / 2, num_bytes = half * sizeof operand;
        for (std::size_t i = 0; i < run.block; ++i)
            CHECK(memory[i] == (i < half ? operand + 3 : operand), run.what, "element", i);
        if (run.awaits) CHECK(transport.slots.size() < num_bytes, run.what); // only the last pieces
        else CHECK(transport.slots.size() == (run.is_made ? num_bytes : 0), run.what, transport.slots.size());
        CHECK(transport.num_published + transport.slots.size() == run.block * sizeof operand, "each sent once");
        CHECK(std::equal(transport.slots.begin(), transport.slots.end(), bytes), run.what);
    }
}

TEST(made_is_in_the_slot_that_its_readers_are_told_of) {
    World world(3, {.spin = true, .as_processes = true});
    ShmTransport &writer = transport_of(world, 0);
    std::vector<std::byte> data(piece_bytes);
    std::size_t num_made = 0, num_shown = 0;
    const auto make = [&](std::size_t begin, std::size_t num_bytes, std::byte *also) {
        CHECK(begin == num_made && also != nullptr);
        // Earlier results can be read now.
        for (int reader : {1, 2}) {
            const View view = transport_of(world, reader).view(0);
            CHECK(view.bytes.size() <= begin && std::ranges::count(view.bytes, made) == std::ssize(view.bytes));
            num_shown += view.bytes.size();
        }
        std::fill_n(also, num_bytes, made);
        num_made += num_bytes;
    };
    const std::array both{1, 2};
    CHECK(writer.publish_made(both, data, tag, make) && num_made == piece_bytes && num_shown > 0);
    for (int reader : both) {
        const View view = transport_of(world, reader).view(0);
        CHECK(view.bytes.size() == piece_bytes && view.tag == tag);
        CHECK(std::ranges::count(view.bytes, made) == std::ssize(view.bytes));
        transport_of(world, reader).release(0, piece_bytes);
    }
}

TEST(made_is_nothing_while_there_is_no_slot) {
    World world(2, {.spin = true, .as_processes = true});
    ShmTransport &writer = transport_of(world, 0);
    const int peer = 1;
    const std::vector<std::byte> data(piece_bytes);
    while (writer.publish(std::span(&peer, 1), data, tag, false).num_bytes > 0) continue;
    const auto make = [](std::size_t, std::size_t, std::byte *) { CHECK(false, "nobody reads it"); };
    CHECK(!writer.publish_made(std::span(&peer, 1), data, tag, make));
}
