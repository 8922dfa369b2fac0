// The network thread of a rank: it sends what the system did not take when a call was made, and wakes this rank when
// something comes while it sleeps.
#pragma once

#include "base/system.h"
#include "transport/tcp/sender.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace hocket {

/// The thread begins when something is first left to it, and sleeps while nothing happens.
class NetworkThread {
  public:
    NetworkThread();
    NetworkThread(const NetworkThread &) = delete;
    NetworkThread &operator=(const NetworkThread &) = delete;
    /// What is left by then is not sent.
    ~NetworkThread();

    /// Sends what is left there as soon as the system takes it. It keeps the sender that long.
    void push_later(const std::shared_ptr<Sender> &sender);
    /// Calls `ring` once, as soon as `descriptor` is readable. `ring` must not call back.
    void ring_at(int descriptor, const std::function<void()> &ring);
    /// `ring` is not called any more once this returns.
    void forget(int descriptor);

  private:
    struct State {
        ~State();
        std::mutex mutex; // guards the rest; a sender's own is taken inside it, never the other way round
        std::map<int, std::shared_ptr<Sender>> senders; // by descriptor, of those that the poll looks at
        std::map<int, std::function<void()>> rings;     // the same
        int poll = -1, bell = -1;
        bool is_stopping = false;
        std::thread thread;
    };

    void begin();
    void run();
    void handle(int descriptor);

    OfThisProcess<State> state_;
};

} // namespace hocket
