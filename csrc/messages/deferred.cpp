// Messages that come after something else: what is in a stream when they are launched, or others that wait for such.

#include "messages/point_to_point.h"

#include <utility>

namespace hocket {
namespace {

/// What the thread that begins them does at their turn.
class Posting final : public Task {
  public:
    explicit Posting(std::function<void()> post) : post_(std::move(post)) {}
    void run() override { post_(); }

  private:
    std::function<void()> post_;
};

} // namespace

/// With the lock held.
void PointToPoint::defer(const Operations &operations, const std::shared_ptr<Mark> &after) {
    deferred_.insert(deferred_.end(), operations.begin(), operations.end());
    operations.front()->after = after;
    start_background(); // it hears of trouble meanwhile
    if (failure_) return end_with(*failure_);
    try {
        if (!state_->deferring) state_->deferring = std::make_unique<Stream>("messages");
        state_->deferring->submit(std::make_unique<Posting>(
            [this, num_first = operations.size(), after] { post_deferred(num_first, after.get()); }));
    } catch (...) { end_with_caught(); } // else nobody would begin them
    hand_on();
}

/// With the lock held: std::runtime_error where no message can begin before this thread goes on.
void PointToPoint::check_awaitable() const {
    for (const auto &operation : deferred_) {
        if (operation->after) operation->after->check_awaitable();
    }
}

/// Begins the first ones, once the mark is passed, unless a failure has ended them all. They are not waited for longer,
/// as what the mark belongs to may wait for ever.
void PointToPoint::post_deferred(std::size_t num_first, Mark *after) {
    while (after != nullptr && !after->wait(attention)) {
        const Lock lock(state_->mutex);
        if (failure_) return;
    }
    const Lock lock(state_->mutex);
    if (failure_) return;
    try {
        const auto end = deferred_.begin() + static_cast<std::ptrdiff_t>(num_first);
        const Operations operations(deferred_.begin(), end);
        pending_.reserve(pending_.size() + num_first); // nothing may be thrown while they are in neither list
        const bool has_failed = after != nullptr && after->failure();
        const std::string reason =
            has_failed ? "an operation before its message has failed: " + text_of(after->failure()) : "";
        deferred_.erase(deferred_.begin(), end);
        if (has_failed) {
            give_up(reason);
            has_raised_ = true;
            for (const auto &operation : operations) {
                operation->failure = failure_;
                operation->finish(after->failure());
            }
            return;
        }
        for (const auto &operation : operations) {
            if (operation->launching.at != 0) operation->begun = ticks();
        }
        pending_.insert(pending_.end(), operations.begin(), operations.end());
    } catch (...) { return end_with_caught(); }
    post(num_first, Round::beginning);
    stop_reading();
    set_deadlines();
    hand_on();
}

} // namespace hocket
