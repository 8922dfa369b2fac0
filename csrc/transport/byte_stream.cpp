#include "transport/byte_stream.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace hocket {

ByteStreamTransport::ByteStreamTransport(std::shared_ptr<ByteStreams> streams, int rank)
    : streams_(std::move(streams)), rank_(rank) {
    if (rank_ < 0 || rank_ >= streams_->num_ranks()) throw Failure::internal("byte stream: no such rank");
}

Taken ByteStreamTransport::post(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &) {
    const auto occupied = [&](int peer) { return posted(peer) != released(peer); };
    if (std::ranges::any_of(peers, occupied)) return {};
    for (int peer : peers) {
        ByteStreams::Cell &cell = streams_->cell(rank_, peer);
        cell.byte = bytes[0];
        cell.tag = tag;
        cell.posted.store(cell.posted.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    return {.num_bytes = 1, .way = Way::stream};
}

std::uint64_t ByteStreamTransport::posted(int peer) const {
    return streams_->cell(rank_, peer).posted.load(std::memory_order_relaxed); // own writes only
}

std::uint64_t ByteStreamTransport::released(int peer) const {
    return streams_->cell(rank_, peer).released.load(std::memory_order_acquire);
}

View ByteStreamTransport::view(int peer) const {
    ByteStreams::Cell &cell = streams_->cell(peer, rank_);
    const std::uint64_t posted = cell.posted.load(std::memory_order_acquire);
    if (posted == cell.released.load(std::memory_order_relaxed)) return {};
    return {.bytes = Bytes(&cell.byte, 1), .tag = cell.tag};
}

void ByteStreamTransport::release(int peer, std::size_t num_bytes) {
    ByteStreams::Cell &cell = streams_->cell(peer, rank_);
    if (num_bytes > 0)
        cell.released.store(cell.released.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

} // namespace hocket
