// The transport over a paced link: what is sent is shown to its reader when such a link would have carried it. Nobody
// works meanwhile, as the bytes go through shared memory all the same.
#pragma once

#include "transport/link.h"
#include "transport/shm/shm.h"

#include <memory>

namespace hocket {

/// Only messages take their time on a link, so nobody is let write elsewhere.
class PacedTransport final : public Transport {
  public:
    /// Nothing where the context's link is not paced. Both must outlive it. Throws a resource failure where the times
    /// of arrival find no memory.
    static std::unique_ptr<PacedTransport> over(ShmTransport &inner, const Context &context);

    Reach reach(std::span<const int> peers) const override {
        Reach found = inner_.reach(peers);
        found.may_put = found.may_fetch = found.may_change = false;
        return found;
    }
    MemoryKind memory_of(Bytes bytes, std::span<const int> peers, bool asks_for_pages) override {
        return inner_.memory_of(bytes, peers, asks_for_pages);
    }
    Taken post(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &how = {}) override;
    std::uint64_t posted(int peer) const override { return inner_.posted(peer); }
    std::uint64_t released(int peer) const override { return inner_.released(peer); }
    View view(int peer) const override;
    bool copy(int peer, std::byte *destination, std::size_t num_bytes) override {
        return inner_.copy(peer, destination,
                           num_bytes); // which asks the system for what a caller has posted to be fetched
    }
    void release(int peer, std::size_t num_bytes) override { inner_.release(peer, num_bytes); }
    void tell(int peer, std::uint64_t number) override { inner_.tell(peer, number); }
    std::uint64_t told(int peer) const override { return inner_.told(peer); }
    void flush() override { inner_.flush(); }
    std::chrono::nanoseconds until_arrival(Clock::time_point since) const override;
    bool is_coming(int peer) const override;

  private:
    PacedTransport(ShmTransport &inner, Link &link) : inner_(inner), link_(link) {}
    Clock::time_point arrival_from(int peer) const;

    ShmTransport &inner_;
    Link &link_;
};

} // namespace hocket
