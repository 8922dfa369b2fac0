// Whose turn it is on a communicator: calls of the program's threads and of its stream, one after the other.

#include "communicator/communicator.h"

#include <algorithm>
#include <ranges>
#include <stdexcept>
#include <utility>

namespace hocket {
void Communicator::run(const Call &call, const Hook &interrupted, const Hook &before_wait) {
    queue_.check_here();
    if (!take_turn()) {
        before_wait();
        return run_on_stream(call, interrupted);
    }
    try {
        patience_ = patience_of(spin_);
        lingers_ = !spin_ && !channels_.is_paced();
        run_to_end(call, {}, interrupted, before_wait);
    } catch (...) {
        has_raised_ = true;
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
                "a collective was called inside another one, for example by a signal handler or an op; call it later");
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
    {
        const std::scoped_lock lock(queue_->mutex);
        queue_->wake();
    }
    const std::uint64_t begin = ticks();
    try {
        while (!work->end().wait(attention)) interrupted();
    } catch (...) {
        abort("interrupted");
        while (!work->end().wait(attention)) continue; // its memory is in use until it sees the abort
        throw;
    }
    work->record_wait(begin);
    if (work->end().failure()) std::rethrow_exception(work->end().tell_failure());
}

void Communicator::hand_on() {
    queue_->runner.store({}, std::memory_order_relaxed);
    std::uint32_t alone = Queue::busy;
    if (queue_->turn.compare_exchange_strong(alone, 0, std::memory_order_release)) return;
    const std::scoped_lock lock(queue_->mutex);
    const bool attended = queue_->closing || !queue_->works.empty();
    queue_->turn.store(attended ? Queue::attended : 0, std::memory_order_release);
    // Others wait for nothing else; but the stream, where it looks by itself, is not woken for what others run.
    if (attended && (queue_->closing || queue_->doze.is_asleep())) queue_->changed.notify_all();
}

std::shared_ptr<Work> Communicator::submit(Call call, std::shared_ptr<Mark> after) {
    auto work = std::make_shared<Work>(std::move(call));
    submit(work, std::move(after));
    return work;
}

void Communicator::submit(std::shared_ptr<Work> work, std::shared_ptr<Mark> after) {
    queue_.check_here();
    work->after_ = std::move(after);
    if (lane_.is_on()) work->begin_launch(lane_);
    const std::scoped_lock lock(queue_->mutex);
    if (queue_->closing) throw members_.closed_here();
    if (!queue_->has_stream) {
        if (queue_->stream.joinable()) queue_->stream.join(); // it has let go of the mutex
        queue_->stream = start_thread("the stream thread", [this] { serve(); });
        queue_->has_stream = true;
    }
    queue_->works.push_back(work);
    queue_->doze.note_begun();
    if (queue_->doze.is_watchful()) work->submitted_ = Clock::now();
    work->is_queued_ = true;
    queue_->turn.fetch_or(Queue::attended, std::memory_order_relaxed);
    if (queue_->doze.is_asleep()) queue_->changed.notify_all();
    work->record_launch();
}

/// With the mutex held: the next call of the stream, with the turn, for this thread. `before`: to be let go without the
/// mutex, as its failure may take the interpreter.
std::shared_ptr<Work> Communicator::take_first(std::shared_ptr<Mark> &before) {
    auto work = std::move(queue_->works.front());
    queue_->works.pop_front();
    work->is_queued_ = false;
    queue_->is_wanted = queue_->is_wanted && !queue_->works.empty(); // it may be for one of those
    before = std::exchange(queue_->awaited, work->after_);
    queue_->turn.fetch_or(Queue::busy, std::memory_order_acquire);
    queue_->runner.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return work;
}

void Communicator::run_awaited(const Work &work, Clock::time_point until) {
    queue_.check_here();
    const auto now = Clock::now();
    {
        const std::scoped_lock lock(queue_->mutex);
        queue_->doze.note_wait(work.submitted_);
    }
    while (run_first_before(work, std::min(until, now + attention))) continue;
}

/// Runs the first call of the stream, if that is the work or comes before it. Whether it has ended, and was another.
bool Communicator::run_first_before(const Work &work, Clock::time_point until) {
    std::shared_ptr<Mark> before;
    std::shared_ptr<Work> taken;
    {
        const std::scoped_lock lock(queue_->mutex);
        if (!work.is_queued_) return false;
        const bool is_next = !queue_->closing && !queue_->is_busy() && may_run_here(*queue_->works.front());
        if (!is_next || Clock::now() >= until) {
            queue_->wake();
            return false;
        }
        taken = take_first(before);
        queue_->doze.note_done();
    }
    taken->sequence_.store(sequence_ + 1, std::memory_order_relaxed);
    std::exception_ptr failure;
    try {
        if (!begin_awaited(*taken, until)) {
            const std::scoped_lock lock(queue_->mutex);
            queue_->runner.store(queue_->stream.get_id(), std::memory_order_relaxed);
            queue_->begun = std::move(taken);
            queue_->changed.notify_all();
            return false;
        }
    } catch (...) {
        failure = std::current_exception();
        failed_.push_back(taken->end_);
    }
    // Before the turn goes: who closes looks at nothing else, and finds it ended.
    taken->end_->pass(std::move(failure), Clock::now());
    hand_on();
    return taken.get() != &work;
}

/// With the mutex held, while no call runs. Not where it would have to wait before it begins; nor an op of the program,
/// which may raise what its signal handlers raise.
bool Communicator::may_run_here(const Work &work) const {
    if (work.after_ && (!work.after_->is_passed() || work.after_->failure())) return false;
    const auto it_follows = [this](int member) { return follows(member); };
    return work.call_.launch.custom == nullptr &&
           (sequence_ % ControlPage::lead != 0 || std::ranges::all_of(std::views::iota(0, size()), it_follows));
}

/// The stream: takes calls in order while nobody else runs one.
void Communicator::serve() {
    for (;;) {
        std::shared_ptr<Work> work;
        std::shared_ptr<Mark> before;
        bool has_begun = false;
        {
            std::unique_lock lock(queue_->mutex);
            const bool is_needed = queue_->doze.await(
                lock, queue_->changed, spin_,
                [this] { return queue_->begun || (!queue_->is_busy() && (queue_->closing || !queue_->works.empty())); },
                [this] { return queue_->begun || queue_->closing || queue_->is_wanted; });
            if (!is_needed) {
                if (queue_->is_busy()) continue; // what runs may be handed over, or works may wait for its end
                queue_->has_stream = false;
                return;
            }
            has_begun = queue_->begun != nullptr;
            if (has_begun) work = std::move(queue_->begun);
            else if (queue_->works.empty()) return;
            else work = take_first(before);
        }
        std::exception_ptr failure;
        try {
            lingers_ = false;
            patience_ = patience_of(false); // whoever launched it computes meanwhile, and needs the core
            if (has_begun) {
                end_awaited(*work);
            } else {
                if (work->after_) await_earlier(*work->after_);
                work->sequence_.store(sequence_ + 1, std::memory_order_relaxed);
                run_to_end(work->call_, work->launching_, [] {}, [] {});
            }
        } catch (...) {
            failure = std::current_exception();
            failed_.push_back(work->end_);
        }
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
    give_up("an operation before its call has failed: " + text_of(mark.failure()), std::nullopt);
    std::rethrow_exception(mark.failure());
}

} // namespace hocket
