// What goes out through one socket. What the system does not take at once goes later, in order.
#pragma once

#include "base/system.h"
#include "base/types.h"

#include <atomic>
#include <cstdint>
#include <vector>

namespace hocket {

/// Thread-safe: the network thread sends what is left while the owner goes on.
class Sender {
  public:
    /// Of a connected stream socket, which it closes in the end.
    explicit Sender(int descriptor) : descriptor_(descriptor) {}
    Sender(const Sender &) = delete;
    Sender &operator=(const Sender &) = delete;
    ~Sender();

    int descriptor() const { return descriptor_; }
    /// Whether something is left that the system has not taken yet.
    bool has_rest() const { return has_rest_.load(std::memory_order_acquire); }
    /// Whether the system takes nothing more: what it was given is lost, perhaps with some of what it had taken.
    bool is_broken() const { return is_broken_.load(std::memory_order_acquire); }

    /// Only while nothing is left. Sends all this in order; what is left of it is copied, but for `bytes` if they may
    /// be lent: then they are sent from where they lie. Returns whether they are.
    bool send(Bytes header, Bytes bytes, Bytes padding, bool may_lend);
    /// Sends a number instead of all earlier ones that have not begun to go. The only use of its socket.
    void send_latest(std::uint64_t number);
    /// Sends what is left, as far as the system takes it. False: something still is.
    bool push();
    /// What was lent may change from now on: what is left of it is copied.
    void end_loan();
    /// Nothing more follows what is left. The peer sees that.
    void end();
    /// Whether the peer has ended the connection, or its system has answered nothing for long.
    bool is_lost() const;
    /// Whether the peer's system has all that was sent.
    bool has_delivered() const;

  private:
    bool push_locked();

    int descriptor_;
    std::atomic<bool> has_rest_{false}, is_broken_{false}; // changed under the mutex
    Mutex mutex_;
    bool is_ending_ = false;
    // What is left, in this order.
    std::vector<std::byte> front_, back_;
    Bytes lent_;
};

} // namespace hocket
