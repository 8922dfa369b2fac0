// Whose turn it is on a communicator: calls of the program's threads and of its stream, one after the other.

#include "communicator.h"

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace hocket {

void Communicator::run(const Call &call, const Hook &interrupted, const Hook &before_wait) {
    check_usable();
    if (!take_turn()) {
        before_wait();
        return run_on_stream(call, interrupted);
    }
    try {
        patience_ = patience_of(spin_);
        lingers_ = !spin_ && !paced_;
        run_to_end(call, {}, interrupted, before_wait);
    } catch (...) {
        end_turn();
        throw;
    }
    end_turn();
}

/// Whether this thread may run a call now. False where it has to be done by the stream.
bool Communicator::take_turn() {
    std::uint32_t nothing = 0;
    if (!queue_->turn.compare_exchange_strong(nothing, Queue::busy, std::memory_order_acquire)) {
        const std::scoped_lock lock(queue_->mutex);
        if (queue_->closing) throw members_.closed_here();
        if (queue_->runs_here()) {
            throw std::runtime_error(
                "a collective was called inside another one, as by a signal handler or an op; call it later");
        }
        queue_->check_awaitable();
        if (!queue_->works.empty()) return false;
        if ((queue_->turn.fetch_or(Queue::busy, std::memory_order_acquire) & Queue::busy) != 0) return false;
    }
    queue_->runner.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
}

/// Of a blocking call, above which a signal handler may have closed the communicator.
void Communicator::end_turn() {
    const bool closed_inside = queue_->closed_inside; // whoever runs the next call may set it
    hand_on();
    if (!closed_inside) return;
    if (queue_->stream.joinable()) queue_->stream.join();
    leave();
}

void Communicator::run_on_stream(const Call &call, const Hook &interrupted) {
    const auto work = submit(call);
    const std::uint64_t begin = ticks();
    try {
        while (!work->end().wait(attention)) interrupted();
    } catch (...) {
        abort("interrupted");
        while (!work->end().wait(attention)) continue; // its memory is in use until it sees the abort
        throw;
    }
    work->record_wait(begin);
    if (work->end().failure()) std::rethrow_exception(work->end().failure());
}

void Communicator::hand_on() {
    queue_->runner.store({}, std::memory_order_relaxed);
    std::uint32_t alone = Queue::busy;
    if (queue_->turn.compare_exchange_strong(alone, 0, std::memory_order_release)) return;
    const std::scoped_lock lock(queue_->mutex);
    const bool attended = queue_->closing || !queue_->works.empty();
    queue_->turn.store(attended ? Queue::attended : 0, std::memory_order_release);
    if (attended) queue_->changed.notify_all(); // others wait for nothing else
}

std::shared_ptr<Work> Communicator::submit(Call call, std::shared_ptr<Mark> after) {
    check_usable();
    auto work = std::make_shared<Work>();
    work->call_ = std::move(call);
    work->after_ = std::move(after);
    if (lane_.is_on()) work->begin_launch(lane_);
    const std::scoped_lock lock(queue_->mutex);
    if (queue_->closing) throw members_.closed_here();
    if (!queue_->stream.joinable()) {
        try {
            queue_->stream = std::thread([this] { serve(); });
        } catch (const std::system_error &error) {
            errno = error.code().value();
            throw Failure::resource("starting the stream thread");
        }
    }
    queue_->works.push_back(work);
    queue_->turn.fetch_or(Queue::attended, std::memory_order_relaxed);
    queue_->changed.notify_all();
    work->record_launch();
    return work;
}

/// The stream: takes calls in order while nobody else runs one.
void Communicator::serve() {
    block_signals();
    for (;;) {
        std::shared_ptr<Work> work;
        std::shared_ptr<Mark> before; // let go without the mutex, as its failure may take the interpreter
        {
            std::unique_lock lock(queue_->mutex);
            queue_->changed.wait(lock,
                                 [this] { return !queue_->is_busy() && (queue_->closing || !queue_->works.empty()); });
            if (queue_->works.empty()) return;
            work = queue_->works.front();
            queue_->works.pop_front();
            before = std::exchange(queue_->awaited, work->after_);
            queue_->turn.fetch_or(Queue::busy, std::memory_order_relaxed);
            queue_->runner.store(std::this_thread::get_id(), std::memory_order_relaxed);
        }
        std::exception_ptr failure;
        try {
            if (work->after_) await_earlier(*work->after_);
            work->sequence_.store(sequence_ + 1, std::memory_order_relaxed);
            lingers_ = false;
            patience_ = patience_of(false); // whoever launched it computes meanwhile, and needs the core
            run_to_end(work->call_, work->launching_, [] {}, [] {});
        } catch (...) { failure = std::current_exception(); }
        hand_on();
        work->end_->pass(std::move(failure), Clock::now());
    }
}

/// What comes before a call on the stream. Where that has failed, this rank cannot make the call, and gives up.
void Communicator::await_earlier(Mark &mark) {
    while (!mark.wait(attention)) {
        if (!failure_ && !concerning_failure(sequence_ + 1)) continue;
        passed_over_ = true; // the call looks why, also where its alarm has not come yet
        return;
    }
    if (!mark.failure()) return;
    give_up("what its call comes after has failed: " + text_of(mark.failure()), std::nullopt);
    std::rethrow_exception(mark.failure());
}

} // namespace hocket
