// The transport's second implementation: one byte at a time between ranks of one process. It proves that the executor
// assumes nothing about sizes, alignment or buffering.
#pragma once

#include "transport/transport.h"

#include <atomic>
#include <memory>
#include <vector>

namespace hocket {

/// The cells of all channels among `num_ranks` ranks; every endpoint holds a share of it.
class ByteStreams {
  public:
    struct Cell {
        std::atomic<std::uint64_t> posted{0};   // by the writer, after byte and tag
        std::atomic<std::uint64_t> released{0}; // by the reader: the cell is free when both are equal
        std::atomic<std::uint64_t> told{0};     // by the reader
        std::byte byte{};
        std::uint32_t tag = 0;
    };

    explicit ByteStreams(int num_ranks)
        : num_ranks_(num_ranks), cells_(static_cast<std::size_t>(num_ranks) * static_cast<std::size_t>(num_ranks)) {}

    ByteStreams(const ByteStreams &) = delete;
    ByteStreams &operator=(const ByteStreams &) = delete;

    int num_ranks() const { return num_ranks_; }
    Cell &cell(int from, int to) { return cells_[static_cast<std::size_t>(from * num_ranks_ + to)]; }

  private:
    int num_ranks_;
    std::vector<Cell> cells_;
};

class ByteStreamTransport final : public Transport {
  public:
    ByteStreamTransport(std::shared_ptr<ByteStreams> streams, int rank);

    Reach reach(std::span<const int>) const override { return {.is_stream = true}; }
    Taken post(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &how) override;
    std::uint64_t posted(int peer) const override;
    std::uint64_t released(int peer) const override;
    View view(int peer) const override;
    void release(int peer, std::size_t num_bytes) override;
    void tell(int peer, std::uint64_t number) override { streams_->cell(peer, rank_).told.store(number); }
    std::uint64_t told(int peer) const override { return streams_->cell(rank_, peer).told.load(); }

  private:
    std::shared_ptr<ByteStreams> streams_;
    int rank_;
};

} // namespace hocket
