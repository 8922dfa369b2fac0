// Several transports as one: each peer is reached by one of them, and whoever posts, reads or waits knows none of them.
#pragma once

#include "transport/transport.h"

#include <vector>

namespace hocket {

class Carrier final : public Transport, public Windows {
  public:
    /// `via`: by member, the number of the transport that reaches it. The transports must outlive this. They cannot
    /// share what is posted, so a plan has to be split (Plan::split).
    Carrier(std::vector<Transport *> transports, std::vector<int> via);

    Reach reach(std::span<const int> peers) const override;
    MemoryKind memory_of(Bytes bytes, std::span<const int> peers, bool asks_for_pages) override;
    void prepare(int peer, std::size_t num_bytes) override { of(peer).prepare(peer, num_bytes); }
    Taken post(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &how) override;
    std::uint64_t posted(int peer) const override { return of(peer).posted(peer); }
    std::uint64_t released(int peer) const override { return of(peer).released(peer); }
    bool awaits_room(int peer) const override { return of(peer).awaits_room(peer); }
    View view(int peer) const override { return of(peer).view(peer); }
    bool copy(int peer, std::byte *destination, std::size_t num_bytes) override {
        return of(peer).copy(peer, destination, num_bytes);
    }
    void release(int peer, std::size_t num_bytes) override { of(peer).release(peer, num_bytes); }
    void tell(int peer, std::uint64_t number) override { of(peer).tell(peer, number); }
    std::uint64_t told(int peer) const override { return of(peer).told(peer); }
    void flush() override;
    std::chrono::nanoseconds until_arrival(std::chrono::steady_clock::time_point since) const override;
    bool is_coming(int peer) const override { return of(peer).is_coming(peer); }
    bool is_broken(int peer) const override { return of(peer).is_broken(peer); }
    void withdraw() override;
    Windows *windows() override { return this; }

    void grant(int peer, std::uint32_t tag, std::span<const Window> windows) override;
    std::span<const Window> granted(int peer, std::uint32_t tag, std::uint64_t num_posted) override;
    bool put(std::span<const int> peers, std::span<std::byte *const> places, Bytes bytes, std::uint32_t tag,
             bool past_caches, const Making &make) override;
    void revoke() override;
    bool may_be_written_by(int peer) const override;

  private:
    Transport &of(int peer) const {
        return *transports_[static_cast<std::size_t>(via_[static_cast<std::size_t>(peer)])];
    }

    std::vector<Transport *> transports_;
    std::vector<int> via_;
};

} // namespace hocket
