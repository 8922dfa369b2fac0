// Messages that need no slot, because they travel in one line or in two.

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
constexpr std::size_t in_line = Endpoint::inline_bytes;

std::size_t publish(ShmTransport &writer, Bytes bytes) {
    const int reader = 0;
    return writer.post(std::span(&reader, 1), bytes, tag).num_bytes;
}

/// Reads a message of rank 1, or a part of one, that must have exactly these bytes.
void read(ShmTransport &reader, Bytes expected) {
    const View view = reader.view(1);
    CHECK(std::ranges::equal(view.bytes, expected) && view.tag == tag && !view.attached);
    reader.release(1, view.bytes.size());
}

} // namespace

TEST(short_messages_travel_in_their_line) {
    World world(2, {.as_processes = true});
    ShmTransport &writer = transport_of(world, 1), &reader = transport_of(world, 0);
    const auto data = counted(Endpoint::inline_bytes);
    CHECK(reader.view(1).bytes.empty() && reader.view(1).bytes.empty());
    CHECK(publish(writer, data) == data.size() && !reader.view(1).bytes.empty());
    const View all = reader.view(1);
    Endpoint::Line &line = writer.endpoint(1).ring(Lane::collectives, 0)[0];
    const auto *const bytes = reinterpret_cast<const std::byte *>(&line);
    CHECK(all.tag == tag && all.num_coming == 0 && std::ranges::equal(all.bytes, data));
    CHECK(line.tier == Endpoint::Tier::in_line && !std::ranges::search(std::span(bytes, sizeof line), data).empty());
    reader.release(1, 40);
    CHECK(!reader.view(1).bytes.empty() && std::ranges::equal(reader.view(1).bytes, std::span(data).subspan(40)));
    for (const std::uint8_t num_bytes : {0, 39, 49, 0xff}) {
        line.num_head_bytes = num_bytes;
        CHECK(failure_of([&] { reader.view(1); }).has_value(), int{num_bytes}, "cannot be");
    }
    line.num_head_bytes = static_cast<std::uint8_t>(data.size());
    reader.release(1, 8);
    CHECK(reader.view(1).bytes.empty() && reader.view(1).bytes.empty() && writer.released(0) == 1);
}

TEST(messages_of_two_lines_come_as_two) {
    World world(2, {.as_processes = true});
    ShmTransport &writer = transport_of(world, 1), &reader = transport_of(world, 0);
    const auto data = counted(2 * in_line + 1);
    for (const std::size_t num_bytes : {in_line + 1, 64ul, 2 * in_line}) {
        const std::uint64_t before = writer.posted(0);
        const auto all = std::span(data).first(num_bytes);
        CHECK(publish(writer, all) == num_bytes && writer.posted(0) == before + 2);
        read(reader, all.first(in_line));
        read(reader, all.subspan(in_line));
        CHECK(writer.released(0) == before + 2 && reader.view(1).bytes.empty());
    }
    const std::uint64_t before = writer.posted(0);
    CHECK(publish(writer, data) == data.size() && writer.posted(0) == before + 1, "too long for two");
    read(reader, data);
}

TEST(messages_of_two_lines_are_taken_whole_or_not_at_all) {
    World world(2, {.as_processes = true});
    ShmTransport &writer = transport_of(world, 1), &reader = transport_of(world, 0);
    const auto data = counted(64);
    const auto one = std::span(data).first(1);
    for (std::uint64_t i = 0; i < largest_ring - 1; ++i) CHECK(publish(writer, one) == 1);
    CHECK(publish(writer, data) == 0 && writer.posted(0) == largest_ring - 1, "one line is free");
    read(reader, one);
    CHECK(publish(writer, data) == data.size(), "two are");
    CHECK(publish(writer, one) == 0, "none is");
    for (std::uint64_t i = 0; i < largest_ring - 2; ++i) read(reader, one);
    read(reader, std::span(data).first(in_line));
    read(reader, std::span(data).subspan(in_line));
    CHECK(writer.released(0) == writer.posted(0) && reader.view(1).bytes.empty());
}

TEST(messages_of_two_lines_go_to_several) {
    World world(3, {.as_processes = true});
    ShmTransport &writer = transport_of(world, 1);
    const auto data = counted(64);
    const auto one = std::span(data).first(1);
    const std::array<int, 2> readers{0, 2};
    for (std::uint64_t i = 0; i < largest_ring - 1; ++i) CHECK(publish(writer, one) == 1);
    CHECK(writer.post(readers, data, tag).num_bytes == 0 && writer.posted(2) == 0, "there is room for one");
    for (std::uint64_t i = 0; i < largest_ring - 1; ++i) read(transport_of(world, 0), one);
    CHECK(writer.post(readers, data, tag).num_bytes == data.size());
    for (const int reader : readers) {
        read(transport_of(world, reader), std::span(data).first(in_line));
        read(transport_of(world, reader), std::span(data).subspan(in_line));
    }
}

TEST(calls_wait_for_the_second_line) {
    World world(2, {.as_processes = true});
    const Fixture &broadcast = fixture("broadcast", "direct", 2, 0, true);
    const auto data = counted(64);
    auto given = data, got = counted(64, 100);
    const auto launch = [](std::vector<std::byte> &memory) {
        return Launch{
            .dtype = Dtype::uint8, .block = memory.size(), .input = memory.data(), .output = memory.data(), .tag = tag};
    };
    Executor sender(*broadcast.plans[0], transport_of(world, 0)), reader(*broadcast.plans[1], transport_of(world, 1));
    sender.start(launch(given));
    sender.advance();
    auto &second = transport_of(world, 0).endpoint(0).ring(Lane::collectives, 1)[1].number;
    CHECK(transport_of(world, 0).posted(1) == 2 && second == 2);
    second = 0;
    reader.start(launch(got));
    CHECK(!reader.advance() && reader.waiting_for() == std::vector{0});
    CHECK(std::ranges::equal(std::span(got).first(in_line), std::span(data).first(in_line)) &&
          got[in_line] != data[in_line]);
    second = 2;
    CHECK(reader.advance() && got == data && sender.advance());
}

TEST(lines_join_a_head_and_a_payload) {
    World world(2, {.as_processes = true});
    ShmTransport &writer = transport_of(world, 1), &reader = transport_of(world, 0);
    const auto joined = counted(2 * in_line + 1);
    const auto all = std::span(joined), head = all.first(24), payload = all.subspan(24);
    CHECK(writer.post(std::array{0}, payload.first(24), tag, {.way = Way::lend, .head = head}).num_bytes == 24);
    CHECK(writer.post(std::array{0}, payload.first(72), tag, {.way = Way::lend, .head = head}).num_bytes == 72);
    CHECK(writer.post(std::array{0}, payload, tag, {.way = Way::lend, .head = head}).num_bytes == payload.size());
    read(reader, all.first(48)); // in one line
    read(reader, all.first(48)); // in two
    read(reader, all.subspan(48, 48));
    read(reader, head); // one byte too long for two
    read(reader, payload);
    CHECK(writer.released(0) == 4);
}
