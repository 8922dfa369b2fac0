#include "point_to_point.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <new>
#include <system_error>
#include <utility>

namespace hocket {
namespace {

constexpr unsigned max_yields_in_background = 20; // whoever computes beside it needs the core more

Failure no_memory() {
    errno = ENOMEM;
    return Failure::resource("memory for a message");
}

bool all_finished(std::span<const Operation> operations) {
    return std::ranges::all_of(operations, [](const Operation &operation) { return operation.finished; });
}

} // namespace

std::string Operation::label() const {
    if (scope == Scope::internal) return "making a communicator with rank " + std::to_string(peer);
    std::string text = sends ? "send to rank " : "recv from rank ";
    if (peer == any_source) text = "recv from any rank";
    else text += std::to_string(peer);
    return text + (tag ? " (tag " + std::to_string(*tag) + ")" : " (any tag)");
}

void Operation::finish(std::exception_ptr cause) {
    finished = true;
    if (!end) return;
    if (!cause && failure) cause = std::make_exception_ptr(*failure);
    end->pass(std::move(cause), Clock::now());
}

PointToPoint::PointToPoint(Context &context, const std::vector<int> &ranks, std::span<const std::size_t> offsets,
                           Members &members, bool spin, CommunicatorLane &lane)
    : members_(members), lane_(lane), spin_(spin), transport_(context, ranks, members.rank(), offsets, Lane::messages),
      paced_(PacedTransport::over(transport_, context)),
      carrier_(paced_ ? static_cast<Transport &>(*paced_) : transport_),
      matcher_(carrier_, members.rank(), members.size()) {}

PointToPoint::~PointToPoint() = default; // Communicator has closed it

void PointToPoint::check_usable() const {
    if (!state_.is_here()) throw Failure::forked();
}

// Beginning and waiting -----------------------------------------------------------------------------------------------

/// With the lock held: begins the last ones of `pending_`. They are still pending, or finished.
void PointToPoint::post(std::size_t num_new) {
    try {
        if (failure_) throw *failure_;
        for (std::size_t at = pending_.size() - num_new; at < pending_.size(); ++at) {
            const auto &operation = pending_[at];
            if (operation->sends && members_.has_closed(operation->peer)) throw closed_failure(operation->peer, 0);
            matcher_.post(operation);
        }
    } catch (const Failure &failure) { end_with(failure); } catch (const std::bad_alloc &) {
        end_with(no_memory());
    }
    step(false);
    if (state_->driven)
        members_.own().ring(); // the driver may sleep over what is left to be moved, or over its own end
}

/// Of those that have turned out to wait for something.
void PointToPoint::set_deadlines() {
    const auto now = Clock::now();
    for (const auto &operation : pending_) {
        if (operation->deadline != Clock::time_point::max()) continue;
        operation->deadline = now + operation->timeout;
        next_deadline_ = std::min(next_deadline_, operation->deadline);
    }
}

Operations PointToPoint::begin(std::span<const Message> messages, std::chrono::nanoseconds timeout,
                               const std::shared_ptr<Mark> &after) {
    check_usable();
    Operations operations;
    operations.reserve(messages.size());
    const Launching launching = messages.empty() ? Launching{} : lane_.launch();
    for (const Message &message : messages) {
        operations.push_back(std::make_shared<Operation>(message, timeout));
        operations.back()->end = std::make_shared<Mark>();
        operations.back()->launching = launching;
    }
    const Lock lock(state_->mutex);
    if (state_->closing) throw members_.closed_here();
    if (!deferred_.empty() || (after && (!after->is_passed() || after->failure()))) {
        defer(operations, after);
        if (launching.at != 0)
            record_call(Record::What::launch, *operations.front(), *operations.back(), operations.size());
        return operations;
    }
    pending_.insert(pending_.end(), operations.begin(), operations.end());
    post(operations.size());
    stop_reading();
    if (launching.at != 0)
        record_call(Record::What::launch, *operations.front(), *operations.back(), operations.size());
    if (std::ranges::all_of(operations, [](const auto &operation) { return operation->finished; })) return operations;
    set_deadlines();
    start_background();
    hand_on();
    return operations;
}

void PointToPoint::run(std::span<const Message> messages, std::chrono::nanoseconds timeout, const Hook &interrupted) {
    std::vector<Operation> operations;
    operations.reserve(messages.size());
    for (const Message &message : messages) operations.emplace_back(message, timeout);
    run(operations, interrupted);
}

void PointToPoint::run(std::span<Operation> operations, const Hook &interrupted, const Hook &before_wait) {
    check_usable();
    if (const Launching launching = lane_.launch(); launching.at != 0) [[unlikely]] {
        for (Operation &operation : operations) operation.launching = launching;
    }
    Lock lock(state_->mutex, std::try_to_lock);
    if (!lock) {
        before_wait();
        lock.lock();
    }
    if (state_->closing) throw members_.closed_here();
    if (!deferred_.empty()) {
        check_awaitable();
        before_wait();
        await(lock, [this] { return deferred_.empty(); }, Clock::time_point::max(), operations, interrupted);
        if (state_->closing) throw members_.closed_here();
    }
    // Nothing may be thrown while the machine knows of them.
    pending_.reserve(pending_.size() + operations.size());
    state_->callers.reserve(state_->callers.size() + 1);
    // The caller's memory: it goes when they are finished. After a failure nothing looks at them any more.
    for (Operation &operation : operations) pending_.emplace_back(std::shared_ptr<void>(), &operation);
    post(operations.size());
    if (!poll(operations)) {
        before_wait();
        await_all(lock, operations, interrupted);
    }
    if (!operations.empty() && operations.front().launching.at != 0) [[unlikely]]
        record_call(Record::What::blocking, operations.front(), operations.back(), operations.size());
    for (const Operation &operation : operations) {
        if (operation.failure) throw *operation.failure;
    }
}

/// True when all are finished. Most are so after a few tries, and read no clock. Where a rank has no core of its own,
/// no other can go on while this one tries.
bool PointToPoint::poll(std::span<const Operation> operations) {
    if (spin_ && !state_->driven && !all_finished(operations)) {
        for (unsigned polls = polls_before_wait; polls > 0 && !all_finished(operations); --polls) {
            if (!step(false)) relax();
        }
        hand_on();
    }
    stop_reading();
    return all_finished(operations);
}

void PointToPoint::await_all(Lock &lock, std::span<const Operation> operations, const Hook &interrupted) {
    set_deadlines();
    const auto me = std::this_thread::get_id();
    state_->callers.push_back(me);
    const auto forget_caller = [&] { state_->callers.erase(std::ranges::find(state_->callers, me)); };
    try {
        await(
            lock, [operations] { return all_finished(operations); }, Clock::time_point::max(), operations, interrupted);
    } catch (...) {
        if (!lock.owns_lock()) lock.lock();
        forget_caller();
        if (!all_finished(operations)) give_up("interrupted"); // else another thread may have closed meanwhile
        throw;
    }
    forget_caller();
}

bool PointToPoint::wait(const std::shared_ptr<Operation> &operation, std::chrono::nanoseconds limit,
                        const Hook &interrupted) {
    check_usable();
    const Launching waiting = lane_.launch();
    Lock lock(state_->mutex);
    const bool is_finished = await(
        lock, [&operation] { return operation->finished; }, Clock::now() + limit, {operation.get(), 1}, interrupted);
    if (waiting.at != 0) record_wait(*operation, waiting);
    return is_finished;
}

std::vector<int> PointToPoint::missing(const Operation &operation) {
    check_usable();
    const Lock lock(state_->mutex);
    return awaited(operation);
}

/// True once the condition holds, false when `until` has passed. The lock is held, except while `interrupted` is asked.
bool PointToPoint::await(Lock &lock, const Condition &condition, Clock::time_point until,
                         std::span<const Operation> told, const Hook &interrupted) {
    if (condition()) return true;
    const auto start = Clock::now();
    auto next_look = start + attention;
    Patience patience = patience_of(spin_);
    for (bool stall_told = false;;) {
        const auto limit = std::min(until, next_look);
        if (state_->driven) {
            ++state_->num_waiting;
            state_->changed.wait_until(lock, limit, [&] { return condition() || !state_->driven; });
            --state_->num_waiting;
        } else {
            state_->driven = true;
            drive(lock, condition, limit, patience);
            state_->driven = false;
            hand_on();
        }
        if (condition()) return true;
        const auto now = Clock::now();
        if (now >= until) return false;
        if (now < next_look) continue;
        next_look = now + attention;
        if (now - start >= stall_time && !stall_told) {
            stall_told = true;
            const auto slow =
                std::ranges::find_if(told, [](const Operation &operation) { return !operation.finished; });
            if (slow == told.end()) members_.tell_stall(now - start, "close", matcher_.waiting_for());
            else members_.tell_stall(now - start, slow->label(), awaited(*slow));
        }
        lock.unlock();
        interrupted();
        lock.lock();
    }
}

/// Of a caller that leaves: somebody else goes on.
void PointToPoint::hand_on() {
    if (state_->num_waiting > 0) state_->changed.notify_all();
    if ((pending_.empty() && deferred_.empty()) || !state_->background.joinable()) return;
    state_->work.notify_one();
    members_.own().ring(); // it may sleep over something that was left to be moved
}

void PointToPoint::start_background() {
    if (state_->background.joinable()) return;
    try {
        state_->background = std::thread([this] { serve(); });
    } catch (const std::system_error &error) {
        errno = error.code().value();
        end_with(Failure::resource("starting the thread that moves messages"));
    }
}

/// The thread in the background: drives while something is pending and no caller does.
void PointToPoint::serve() {
    block_signals();
    Lock lock(state_->mutex);
    const auto may_rest = [this] {
        return state_->stopping || state_->driven || (pending_.empty() && deferred_.empty());
    };
    for (;;) {
        state_->work.wait(lock, [&] { return state_->stopping || !may_rest(); });
        if (state_->stopping) return;
        Patience patience = patience_of(false, max_yields_in_background);
        drive(lock, may_rest, Clock::time_point::max(), patience);
    }
}

// Driving -------------------------------------------------------------------------------------------------------------

/// Moves messages until the condition holds or `until` has passed. The lock is held except while this rests.
void PointToPoint::drive(Lock &lock, const Condition &condition, Clock::time_point until, Patience &patience) {
    while (!condition()) {
        const bool moved = step(false);
        if (moved) patience.renew();
        if (condition()) break;
        if (patience.wants_clock()) {
            const auto now = Clock::now();
            patience.look(now);
            check_deadlines(now);
            if (now >= until || condition()) break;
        }
        if (moved || !patience.is_over()) {
            lock.unlock();
            if (!moved) patience.pass();
            lock.lock();
        } else if (sleep(lock, condition, until)) {
            patience.renew();
        }
    }
    stop_reading();
}

/// Unless there was something to move after all, which is what it returns.
bool PointToPoint::sleep(Lock &lock, const Condition &condition, Clock::time_point until) {
    ControlPage &page = members_.own();
    const std::uint32_t bell = page.bell.load(std::memory_order_seq_cst);
    page.sleeping.fetch_add(1, std::memory_order_seq_cst);
    // Whoever stored something before it could see the sleeper is seen now; whoever stores later rings the bell.
    const auto now = Clock::now();
    const bool moved = step(true) || condition();
    if (!moved) {
        const auto arrival = carrier_.until_arrival(now);
        stop_reading();
        lock.unlock();
        const auto left = std::min({until - Clock::now(), std::chrono::nanoseconds(attention), arrival});
        if (left.count() > 0) futex_wait(page.bell, bell, left);
        lock.lock();
    }
    page.sleeping.fetch_sub(1, std::memory_order_relaxed);
    return moved;
}

/// With the lock held, before it is let go for longer than between two tries.
void PointToPoint::stop_reading() {
    if (std::exchange(reading_, false)) members_.own().in_messages.store(0, std::memory_order_release);
}

/// One round of the machine; whether it moved anything. A failure ends all operations. `thorough`: looks at what
/// members have written down although no alarm was raised.
bool PointToPoint::step(bool thorough) {
    if (failure_) return false;
    ControlPage &page = members_.own();
    bool moved = false;
    try {
        // Before the look at the alarm: a member that fails either waits until this has ended, or is heard now.
        if (!std::exchange(reading_, true)) page.in_messages.store(1, std::memory_order_seq_cst);
        std::vector<int> closed;
        if (thorough || page.alarm.load(std::memory_order_seq_cst) != seen_alarm_) closed = examine();
        moved = matcher_.advance();
        if (page.alarm.load(std::memory_order_seq_cst) != seen_alarm_) {
            // A member that has failed meanwhile may have taken back what was just read.
            if (const auto recorded = members_.recorded_failure()) throw *recorded;
        }
        collect(); // what was kept here is received, though who sent it has closed since
        if (!moved && !closed.empty()) look_for_closed(closed);
    } catch (const Failure &failure) {
        // The memory of a peer that gave up may be gone.
        const auto recorded = failure.cause == Cause::resource ? members_.recorded_failure() : std::nullopt;
        end_with(recorded ? *recorded : failure);
        return true;
    } catch (const std::bad_alloc &) {
        end_with(no_memory());
        return true;
    }
    return moved;
}

/// Throws what members have written down of failures; returns those that have closed.
std::vector<int> PointToPoint::examine() {
    seen_alarm_ = members_.own().alarm.load(std::memory_order_seq_cst);
    if (const auto recorded = members_.recorded_failure()) throw *recorded;
    if (const auto death = members_.find_death(0)) throw *death;
    std::vector<int> closed;
    for (int member = 0; member < members_.size(); ++member) {
        if (members_.has_closed(member)) closed.push_back(member);
    }
    return closed;
}

/// All that the members in `closed` have ever sent is read: who still waits for one waits in vain.
void PointToPoint::look_for_closed(const std::vector<int> &closed) const {
    const auto has_closed = [&](int member) { return std::ranges::find(closed, member) != closed.end(); };
    for (const auto &operation : pending_) {
        const auto members = awaited(*operation);
        if (!members.empty() && std::ranges::all_of(members, has_closed)) throw closed_failure(members.front(), 0);
    }
}

/// From any source: all others may come.
std::vector<int> PointToPoint::awaited(const Operation &operation) const {
    if (operation.peer != any_source) return {operation.peer};
    if (operation.source != any_source) return {operation.source};
    std::vector<int> others;
    for (int member = 0; member < members_.size(); ++member) {
        if (member != members_.rank() || members_.size() == 1) others.push_back(member);
    }
    return others;
}

void PointToPoint::collect() {
    if (matcher_.num_done() == seen_done_) return;
    seen_done_ = matcher_.num_done();
    std::erase_if(pending_, [this](const std::shared_ptr<Operation> &operation) {
        if (!operation->done) return false;
        if (operation->launching.at != 0) record(*operation);
        operation->finish();
        return true;
    });
    if (state_->num_waiting > 0) state_->changed.notify_all();
}

void PointToPoint::check_deadlines(Clock::time_point now) {
    if (now < next_deadline_) return;
    step(true); // it may be done by now, or there is a better reason
    std::shared_ptr<Operation> late;
    next_deadline_ = Clock::time_point::max();
    for (const auto &operation : pending_) {
        next_deadline_ = std::min(next_deadline_, operation->deadline);
        if (operation->deadline <= now && !late) late = operation;
    }
    if (!late) return;
    Failure failure;
    failure.cause = Cause::timeout;
    failure.rank = members_.rank();
    failure.seconds = std::chrono::duration<double>(late->timeout).count();
    failure.missing = awaited(*late);
    end_with(failure);
}

void PointToPoint::give_up(const std::string &reason) {
    Failure failure;
    failure.cause = Cause::aborted;
    failure.rank = members_.rank();
    failure.text = reason;
    end_with(failure);
}

/// The machine stands still from here on. Waits for those that still read what was lent, which takes them no wait of
/// their own, so the lock may be held.
void PointToPoint::end_with(Failure failure) {
    if (!failure_) {
        if (failure.cause == Cause::resource || failure.cause == Cause::internal) { // tells the others in their words
            Failure told;
            told.cause = Cause::aborted;
            told.rank = members_.rank();
            told.text = failure.text;
            members_.record(told);
        } else {
            failure = members_.settle(failure);
        }
        failure.self = members_.rank();
        failure_ = std::move(failure);
        members_.await_readers(transport_, &ControlPage::in_messages);
    }
    for (Operations *const operations : {&pending_, &deferred_}) {
        for (const auto &operation : *operations) {
            operation->failure = failure_;
            if (failure_->sequence == 0) operation->failure->label = operation->label();
            if (operation->launching.at != 0) record(*operation);
            operation->finish();
        }
        operations->clear();
    }
    state_->changed.notify_all();
}

// Leaving -------------------------------------------------------------------------------------------------------------

void PointToPoint::close(const Hook &interrupted) {
    if (!state_.is_here()) return;
    Lock lock(state_->mutex);
    state_->closing = true;
    // A signal handler, above its own call: it would wait for itself.
    if (std::ranges::find(state_->callers, std::this_thread::get_id()) != state_->callers.end()) {
        give_up("closed inside its own send or receive");
    }
    const auto has_ended = [this] { return pending_.empty() && deferred_.empty(); };
    await(lock, has_ended, Clock::time_point::max(), {}, interrupted);
    // Nothing comes after the word that an empty message was received: its sender would take this for a loss.
    await(lock, [this] { return !owes_word(); }, Clock::now() + stall_time, {}, interrupted);
    const bool is_first = !state_->stopping; // of several threads that close
    state_->stopping = true;
    state_->work.notify_all();
    members_.own().ring();
    std::thread background = std::move(state_->background);
    const auto deferring = std::move(state_->deferring);
    lock.unlock();
    if (background.joinable()) background.join();
    while (deferring && !deferring->record()->wait(attention)) continue; // its last task may still be here
    if (!is_first) return;
    lock.lock();
    while (step(true)) continue; // what has come but was not looked at
    stop_reading();
    warn_of_unmatched();
}

bool PointToPoint::owes_word() const {
    for (int member = 0; !failure_ && member < members_.size(); ++member) {
        if (matcher_.owes_word(member) && !members_.has_closed(member)) return true;
    }
    return false;
}

void PointToPoint::warn_of_unmatched() {
    const auto messages = matcher_.unmatched();
    if (failure_ || messages.empty()) return;
    const auto &[source, tag] = messages.front();
    std::fprintf(stderr,
                 "hocket: rank %d closes its communicator with %zu %s that it never received, from rank %d with tag "
                 "%llu%s\n",
                 members_.rank(), messages.size(), messages.size() == 1 ? "message" : "messages", source,
                 static_cast<unsigned long long>(tag), messages.size() == 1 ? "" : " first");
}

} // namespace hocket
