// A connection without the system: what a peer has sent, and how much of it has arrived. The program is linked so that
// the core's recv() and ioctl() read from here (--wrap).
#pragma once

#include "base/types.h"

#include <cstdint>
#include <span>
#include <vector>

namespace hocket::fuzz {

class Wire {
  public:
    /// The wire of a descriptor, from 0 to num_wires - 1.
    static Wire &of(int descriptor);
    static constexpr int num_wires = 3;

    void clear();
    /// The peer sends this, or so many bytes of any content.
    void send(Bytes bytes);
    void send_filling(std::size_t num_bytes);
    bool has_room(std::size_t num_bytes) const { return sent_.size() + num_bytes <= most_bytes; }
    /// So many more of the bytes that were sent arrive.
    void arrive(std::size_t num_bytes) { num_arrived_ += std::min(num_bytes, sent_.size() - num_arrived_); }
    /// All have arrived, and behind them comes the end, by an error or not.
    void end(int error);
    /// So many more arrive with each look at what has arrived: the peer sends while this rank reads.
    void set_flood(std::size_t num_bytes) { flood_ = num_bytes; }

    Bytes sent() const { return sent_; }
    std::size_t num_taken() const { return num_taken_; }
    std::size_t num_waiting() const { return num_arrived_ - num_taken_; }
    std::size_t num_looks() const { return num_looks_; }

    /// As the calls of the system.
    long receive(void *to, std::size_t most);
    int count_waiting();

  private:
    static constexpr std::size_t most_bytes = 700'000; // some frames of the longest

    std::vector<std::byte> sent_;
    std::size_t num_arrived_ = 0, num_taken_ = 0, num_looks_ = 0, flood_ = 0;
    bool has_ended_ = false;
    int error_ = 0;
};

} // namespace hocket::fuzz
