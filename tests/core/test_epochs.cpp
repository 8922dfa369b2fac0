// What is left over from an earlier communicator is refused, and is no mismatch of calls.

#include "check.h"
#include "matchers.h"

#include <algorithm>
#include <array>
#include <set>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr const char *left_over = "left over from an earlier communicator";

bool tells_of_it(const std::optional<Failure> &failure, Cause cause) {
    return failure && failure->cause == cause && failure->text.find(left_over) != std::string::npos;
}

} // namespace

TEST(a_tag_has_an_epoch_and_a_short_form_of_the_call) {
    constexpr std::uint64_t digest = 0x123456789abcdef0;
    std::set<std::uint32_t> tags;
    for (std::uint8_t epoch : {0, 1, 255}) {
        const std::uint32_t tag = Fingerprint::tag(digest, epoch);
        CHECK(Fingerprint::epoch_of(tag) == epoch);
        tags.insert({tag, Fingerprint::tag(digest ^ 1, epoch), Fingerprint::tag(digest ^ 1 << 23, epoch)});
    }
    CHECK(tags.size() == 9, tags.size());
}

TEST(a_call_refuses_what_is_left_over) {
    // The very same call, or another one, in the epoch before; the executor finds it where it is short, and long.
    for (const bool is_same_call : {true, false}) {
        for (const std::size_t count : {1, 50'000}) {
            World world(2);
            std::array<std::optional<Failure>, 2> heard;
            world.run([&](Rank &rank) {
                const std::vector<std::int64_t> input(count, 1);
                std::vector<std::int64_t> output(count);
                const Call call = call_of(fixture("all_reduce", "direct", 2), rank.rank, Dtype::int64, Op::sum, count,
                                          reinterpret_cast<const std::byte *>(input.data()),
                                          reinterpret_cast<std::byte *>(output.data()));
                if (rank.rank == 1) {
                    Fingerprint fingerprint = call.fingerprint;
                    fingerprint.sequence = is_same_call ? 1 : 2;
                    const auto bytes = counted(std::min(count * 8, piece_bytes));
                    const int peer = 0;
                    const std::uint32_t tag = Fingerprint::tag(fingerprint.digest(), 255);
                    CHECK(rank.communicator().transport().post({&peer, 1}, bytes, tag).num_bytes > 0);
                }
                world.meet();
                heard[static_cast<std::size_t>(rank.rank)] = failure_of([&] {
                    rank.communicator().run(call, do_nothing);
                    rank.communicator().close(do_nothing); // rank 1 may have all that its call needs
                });
                CHECK(rank.rank == 1 || std::ranges::count(output, 0) == static_cast<std::ptrdiff_t>(count));
            });
            CHECK(tells_of_it(heard[0], Cause::internal) && heard[0]->text.starts_with("rank 1"), is_same_call, count);
            CHECK(tells_of_it(heard[1], Cause::aborted) && heard[1]->rank == 0, is_same_call, count);
        }
    }
}

TEST(messages_refuse_what_is_left_over) {
    for (const Over over : all_transports) {
        for (const std::size_t size : {std::size_t{8}, short_bytes, eager_bytes + 1}) {
            for (const bool at_once : {false, true}) {
                Machines machines(2, over);
                Matcher earlier(*machines.transports[1], machines.profile, 1, 2, 255);
                auto sent = content(1, size), received = std::vector<std::byte>(size);
                earlier.post(std::make_shared<Exchange>(
                    Message{.sends = true, .peer = 0, .tag = 5, .data = sent.data(), .num_bytes = size}));
                const auto failure = failure_of([&] {
                    earlier.advance();
                    machines.post(0, {.peer = 1, .tag = 5, .data = received.data(), .num_bytes = size}, at_once);
                    machines[0].advance();
                });
                CHECK(tells_of_it(failure, Cause::internal) && failure->text.starts_with("member 1"), size);
                CHECK(std::ranges::count(received, std::byte{}) == static_cast<std::ptrdiff_t>(size), size);
            }
        }
    }
}

TEST(messages_refuse_a_payload_that_is_left_over) {
    Machines machines(2, Over::threads);
    const std::array<std::uint64_t, 3> header{std::uint64_t{static_cast<std::uint8_t>(Dtype::uint8)} << 16, 5, 8};
    const int peer = 0;
    const auto publish = [&](Bytes bytes, std::uint8_t epoch) {
        machines.transports[1]->post({&peer, 1}, bytes, Fingerprint::tag(1, epoch));
    };
    publish(std::as_bytes(std::span(header)), 0);
    publish(content(1, 8), 1);
    std::vector<std::byte> received(8);
    const auto failure =
        failure_of([&] { machines.post(0, {.peer = 1, .tag = 5, .data = received.data(), .num_bytes = 8}, true); });
    CHECK(tells_of_it(failure, Cause::internal) && received == std::vector<std::byte>(8));
}
