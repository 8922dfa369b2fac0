#include "messages/point_to_point.h"

#include <algorithm>
#include <cstdio>
#include <ranges>
#include <utility>

namespace hocket {
namespace {

constexpr unsigned max_yields_in_background = 20; // whoever computes beside it needs the core more
/// Of operations that look for their own peers only, one in so many looks for all that others have sent.
constexpr unsigned runs_per_look = 32;

bool all_finished(std::span<const Operation> operations) {
    return std::ranges::all_of(operations, [](const Operation &operation) { return operation.finished; });
}

} // namespace

void Operation::finish(std::exception_ptr cause) {
    finished = true;
    if (!end) return; // of a caller that waits
    if (!cause && failure) cause = std::make_exception_ptr(*failure);
    end->pass(std::move(cause), Clock::now());
}

PointToPoint::PointToPoint(Context &context, const std::vector<int> &ranks, std::span<const std::size_t> offsets,
                           Members &members, bool spin, CommunicatorLane &lane, Connections *connections)
    : members_(members), lane_(lane), spin_(spin),
      channels_(context, ranks, members.rank(), offsets, members.generation(), Lane::messages, connections),
      carrier_(channels_.carrier()),
      matcher_(carrier_, context.profile(), members.rank(), members.size(), members.epoch()) {
    pending_.reserve(1); // for one that the machine knows of already
}

// Beginning and waiting -----------------------------------------------------------------------------------------------

/// Ends a short send to a member that has closed: only its sender hears of it, and all else goes on, as if it had been
/// sent a little earlier and not been received. Not where a failure is recorded: then that is told.
bool PointToPoint::lose(const std::shared_ptr<Operation> &operation) {
    const int peer = operation->peer;
    if (!operation->sends || operation->scope == Scope::internal) return false;
    if (operation->num_bytes > eager_bytes || !members_.has_closed(peer)) return false;
    if (members_.recorded_failure()) return false;
    Failure failure = left_by(peer, *operation);
    failure.label = label(*operation);
    members_.address(failure);
    operation->failure = failure;
    end(*operation);
    const bool is_told = !operation->end || operation->scope != Scope::user;
    if (!is_told && num_lost_++ == 0) first_lost_ = {peer, operation->scope, *operation->tag};
    return true;
}

/// With the lock held: begins the last ones of `pending_`, and makes a round. They are still pending, or finished.
void PointToPoint::post(std::size_t num_new, Round round) {
    try {
        if (failure_) throw *failure_;
        if (num_new == 1 && lose(pending_.back())) return pending_.pop_back();
        for (const auto &operation : std::span(pending_).last(num_new)) {
            if (operation->sends && members_.has_closed(operation->peer)) throw left_by(operation->peer, *operation);
            matcher_.post(operation);
        }
    } catch (...) { end_with_caught(); }
    step(round);
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
                               const std::shared_ptr<Mark> &after, const Hook &before_wait) {
    state_.check_here();
    Operations operations;
    operations.reserve(messages.size());
    const Launching launching = messages.empty() ? Launching{} : lane_.launch();
    for (const Message &message : messages) {
        operations.push_back(std::make_shared<Operation>(message, timeout));
        operations.back()->end = std::make_shared<Mark>();
        operations.back()->launching = launching;
    }
    Lock lock(state_->mutex, std::try_to_lock);
    if (!lock) {
        before_wait();
        lock.lock();
    }
    if (state_->closing) throw members_.closed_here();
    if (operations.empty()) return operations; // of a batch of none
    if (!deferred_.empty() || (after && (!after->is_passed() || after->failure()))) {
        defer(operations, after);
        if (launching.at != 0)
            record_call(Record::What::launch, *operations.front(), *operations.back(), operations.size());
        return operations;
    }
    pending_.insert(pending_.end(), operations.begin(), operations.end());
    post(operations.size(), Round::beginning);
    stop_reading();
    if (launching.at != 0)
        record_call(Record::What::launch, *operations.front(), *operations.back(), operations.size());
    if (std::ranges::all_of(operations, [](const auto &operation) { return operation->finished; })) return operations;
    set_deadlines();
    start_background();
    state_->doze.note_begun();
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
    state_.check_here();
    Lock lock(state_->mutex, std::try_to_lock);
    const bool may_go_at_once = lock && ++num_runs_ % runs_per_look != 0 && is_idle();
    if (may_go_at_once && run_at_once(lock, operations, before_wait)) return;
    run_all(lock, operations, interrupted, before_wait);
}

/// Sends, which wait for nobody, then receives, as far as they go; false where not all are finished. Of those that are
/// not one may be pending.
bool PointToPoint::run_at_once(Lock &lock, std::span<Operation> operations, const Hook &before_wait) {
    const auto goes = [](const Operation &operation, bool is_done) {
        if (operation.failure) throw *operation.failure;
        return is_done;
    };
    for (Operation &operation : operations) {
        if (operation.sends && !goes(operation, send_at_once(operation))) return false;
    }
    pending_.reserve(operations.size()); // as nothing may be thrown once one of them has begun
    for (Operation &operation : operations) {
        if (operation.sends || goes(operation, receive_at_once(operation))) continue;
        if (!goes(operation, receive_behind_others(lock, operations, operation, before_wait))) return false;
    }
    return true;
}

/// Whether no message is under way, and there is no reason to look at more than those that are wanted next.
bool PointToPoint::is_idle() const {
    return pending_.empty() && !state_->driven && deferred_.empty() && !state_->closing && !failure_ &&
           !lane_.is_on() && members_.own().alarm.load(std::memory_order_seq_cst) == seen_alarm_;
}

/// Nobody else needs to know of a short message that goes at once: true when it is finished.
bool PointToPoint::send_at_once(Operation &operation) {
    if (members_.has_closed(operation.peer)) return false;
    try {
        if (!matcher_.send_at_once(operation)) return false;
        carrier_.flush();
        operation.finished = true;
    } catch (...) { end_with_caught(&operation); }
    return true;
}

/// Nor of a receive whose message has come, or does within a few tries, which read no clock. False also where it has
/// merely begun, and is pending.
bool PointToPoint::receive_at_once(Operation &operation) {
    if (!matcher_.may_receive_at_once(operation)) return false;
    state_->callers.reserve(state_->callers.size() + 1); // as nothing may be thrown once it has begun
    start_reading();
    try {
        for (unsigned polls = polls_before_wait / 2; spin_ && polls > 0 && !matcher_.has_come(operation); --polls) {
            check_read();
            relax();
        }
        check_read();
        if (matcher_.receive_at_once(operation)) {
            check_read();
            for (unsigned polls = polls_before_wait; spin_ && polls > 0 && !operation.done; --polls) {
                relax();
                matcher_.receive_on(operation);
                check_read();
            }
            carrier_.flush();
            if (operation.done) operation.finished = true;
            else pending_.emplace_back(std::shared_ptr<void>(), &operation);
        }
    } catch (...) { end_with_caught(&operation); }
    stop_reading();
    return operation.finished;
}

/// Of a rank that shares its core, where nothing has come: once the others there have run, most of what it waits for
/// has, and need not become pending.
bool PointToPoint::receive_behind_others(Lock &lock, std::span<const Operation> operations, Operation &operation,
                                         const Hook &before_wait) {
    const auto is_long = [](const Operation &one) { return one.num_bytes > eager_bytes; };
    if (spin_ || std::ranges::any_of(operations, is_long)) return false; // its sender had better be told at once
    try {
        if (!is_idle() || !matcher_.may_receive_at_once(operation) || matcher_.has_come(operation)) return false;
    } catch (...) {
        end_with_caught(&operation);
        return operation.finished;
    }
    before_wait();
    lock.unlock();
    sched_yield();
    lock.lock();
    return is_idle() && receive_at_once(operation);
}

/// The same for all others: those that are neither pending nor finished begin.
void PointToPoint::run_all(Lock &lock, std::span<Operation> operations, const Hook &interrupted,
                           const Hook &before_wait) {
    const Operation *const last = lock && !pending_.empty() ? pending_.back().get() : nullptr;
    const auto is_new = [last](const Operation &operation) { return !operation.finished && &operation != last; };
    const auto num_new = static_cast<std::size_t>(std::ranges::count_if(operations, is_new));
    if (num_new > 0) {
        const Launching launching = lane_.launch();
        for (Operation &operation : operations | std::views::filter(is_new)) operation.launching = launching;
    }
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
    if (num_new > 0) {
        // Nothing may be thrown while the machine knows of them.
        state_->callers.reserve(state_->callers.size() + 1);
        // The caller's memory: it goes when they are finished. After a failure nothing looks at them any more.
        pending_.reserve(pending_.size() + num_new);
        for (Operation &operation : operations | std::views::filter(is_new))
            pending_.emplace_back(std::shared_ptr<void>(), &operation);
        post(num_new, Round::usual);
    }
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
    if (spin_ && !state_->driven) {
        for (unsigned polls = polls_before_wait; polls > 0 && !all_finished(operations); --polls) {
            if (!step()) relax();
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

bool PointToPoint::has_ended(const Operation &operation) const {
    state_.check_here();
    return !lane_.is_on() && operation.end->is_passed();
}

bool PointToPoint::wait(const std::shared_ptr<Operation> &operation, std::chrono::nanoseconds limit,
                        const Hook &interrupted) {
    if (has_ended(*operation)) return true;
    const Launching waiting = lane_.launch();
    Lock lock(state_->mutex);
    if (!operation->finished && operation->deadline != Clock::time_point::max()) // it is not deferred
        state_->doze.note_wait(operation->deadline - operation->timeout);
    ++operation->num_waits;
    if (state_->closing) end_awaited_receives();
    bool is_finished = false;
    try {
        is_finished = await(
            lock, [&operation] { return operation->finished; }, Clock::now() + limit, {operation.get(), 1},
            interrupted);
    } catch (...) {
        if (!lock.owns_lock()) lock.lock();
        --operation->num_waits;
        throw;
    }
    --operation->num_waits;
    if (waiting.at != 0) record_wait(*operation, waiting);
    return is_finished;
}

std::vector<int> PointToPoint::missing(const Operation &operation) {
    state_.check_here();
    const Lock lock(state_->mutex);
    auto members = awaited(operation);
    for (int &one : members) one = members_.rank_of(one);
    return members;
}

std::string PointToPoint::found_instead(const Operation &operation) {
    state_.check_here();
    const Lock lock(state_->mutex);
    return unwanted(operation);
}

/// True once the condition holds, false when `until` has passed. The lock is held, except while `interrupted` is asked.
bool PointToPoint::await(Lock &lock, const Condition &condition, Clock::time_point until,
                         std::span<const Operation> told, const Hook &interrupted) {
    if (condition()) return true;
    const auto start = Clock::now();
    auto next_look = start + attention;
    Patience patience = patience_of(spin_);
    bool stall_told = false;
    const auto end = [&](bool has_come) {
        if (stall_told) members_.note_stall_over();
        return has_come;
    };
    for (;;) {
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
        if (condition()) return end(true);
        const auto now = Clock::now();
        if (now >= until) return end(false);
        if (now < next_look) continue;
        next_look = now + attention;
        if (now - start >= stall_time && !stall_told) {
            stall_told = true;
            const auto slow =
                std::ranges::find_if(told, [](const Operation &operation) { return !operation.finished; });
            if (slow == told.end()) members_.tell_stall(now - start, "close", matcher_.waiting_for(), 0);
            else members_.tell_stall(now - start, label(*slow), awaited(*slow), 0, unwanted(*slow));
        }
        lock.unlock();
        interrupted();
        lock.lock();
    }
}

/// Of a caller that leaves: somebody else goes on.
void PointToPoint::hand_on() {
    if (state_->num_waiting > 0) state_->changed.notify_all();
    members_.own().ring(); // of those that sleep some may take what was left to be moved
    if ((pending_.empty() && deferred_.empty()) || !state_->has_background) return;
    if (state_->doze.is_asleep()) state_->work.notify_one();
}

void PointToPoint::start_background() {
    if (state_->has_background) return;
    if (state_->background.joinable()) state_->background.join(); // it has let go of the mutex
    try {
        state_->background = start_thread("the thread that moves messages", [this] { serve(); });
        state_->has_background = true;
    } catch (const Failure &failure) { end_with(failure); }
}

/// The thread in the background: drives while something is pending and no caller does.
void PointToPoint::serve() {
    Lock lock(state_->mutex);
    const auto may_rest = [this] {
        return state_->stopping || state_->driven || (pending_.empty() && deferred_.empty());
    };
    for (;;) {
        const bool is_needed = state_->doze.await(
            lock, state_->work, spin_, [&] { return state_->stopping || !may_rest(); },
            [this] { return state_->stopping; });
        if (state_->stopping) return;
        if (!is_needed) {
            if (!pending_.empty() || !deferred_.empty()) continue; // a caller drives, and may leave
            state_->has_background = false;
            return;
        }
        Patience patience = patience_of(false, max_yields_in_background);
        drive(lock, may_rest, Clock::time_point::max(), patience);
        members_.own().ring(); // as hand_on()
    }
}

// Leaving -------------------------------------------------------------------------------------------------------------

void PointToPoint::close(const Hook &interrupted) {
    Lock lock(state_->mutex);
    state_->closing = true;
    // A signal handler, above its own call: it would wait for itself.
    if (std::ranges::find(state_->callers, std::this_thread::get_id()) != state_->callers.end()) {
        give_up("it was closed inside its own send or receive");
    }
    while (step(Round::thorough)) continue; // what has come is received
    end_awaited_receives();
    const auto has_ended = [this] { return pending_.empty() && deferred_.empty(); };
    await(lock, has_ended, Clock::time_point::max(), {}, interrupted);
    const bool is_first = !state_->stopping; // of several threads that close
    state_->stopping = true;
    state_->work.notify_all();
    members_.own().ring();
    std::thread background = std::move(state_->background);
    state_->has_background = false;
    const auto deferring = std::move(state_->deferring);
    lock.unlock();
    if (background.joinable()) background.join();
    while (deferring && !deferring->record()->wait(attention)) continue; // its last task may still be here
    if (!is_first) return;
    lock.lock();
    while (step(Round::thorough)) continue; // what has come but was not looked at
    stop_reading();
    warn_of_unmatched();
}

/// Of a rank that closes. Each of two that close would else wait for a message of the other.
void PointToPoint::end_awaited_receives() {
    for (const auto &operation : pending_) {
        if (!operation->is_awaited_receive() || !matcher_.withdraw(*operation)) continue;
        operation->failure = members_.closed_here();
        operation->failure->label = label(*operation);
    }
    collect();
    if (state_->driven) members_.own().ring(); // the driver may sleep over its own end
}

void PointToPoint::warn_of_unmatched() const {
    if (failure_) return;
    if (const auto messages = matcher_.unmatched(); !messages.empty())
        warn_of(messages.size(), messages.front(), "that it never received: from", "");
    if (num_lost_ > 0) warn_of(num_lost_, first_lost_, "that nobody received: to", ", which had closed before,");
}

void PointToPoint::warn_of(std::size_t number, const Unmatched &first, const char *what, const char *why) const {
    std::fprintf(stderr, "hocket: rank %d closes its communicator with %zu %s %s %s%s with tag %llu%s\n",
                 members_.rank_of(members_.rank()), number, number == 1 ? "message" : "messages", what,
                 members_.name_of(first.peer).c_str(), why, static_cast<unsigned long long>(first.tag),
                 number == 1 ? "" : ", and others");
}

} // namespace hocket
