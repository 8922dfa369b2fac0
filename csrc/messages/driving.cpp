// Rounds of the machine that matches messages: who drives it sleeps between them, and learns here of all that ends it.

#include "messages/point_to_point.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <new>
#include <utility>

namespace hocket {

/// Moves messages until the condition holds or `until` has passed. The lock is held except while this rests.
void PointToPoint::drive(Lock &lock, const Condition &condition, Clock::time_point until, Patience &patience) {
    while (!condition()) {
        const bool moved = step();
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

std::chrono::nanoseconds PointToPoint::help(Clock::time_point since, bool sleeps_then) {
    const Lock lock(state_->mutex, std::try_to_lock); // whoever has it may be long, or wait for what this rank calls
    if (!lock) return short_attention;
    const bool is_left_to_thread = state_->has_background && !pending_.empty() && state_->doze.is_asleep();
    if (state_->driven || is_left_to_thread || failure_) return Clock::duration::max();
    bool moved = false;
    auto arrival = Clock::duration::max();
    try {
        start_reading();
        // A failure is for the call at hand, which knows whether it concerns that. Other alarms, as of an endpoint that
        // is used again, are no reason.
        const bool was_alarmed = members_.own().alarm.load(std::memory_order_seq_cst) != seen_alarm_;
        if (!was_alarmed || !members_.recorded_failure()) {
            moved = matcher_.advance();
            check_read();
            collect();
            if (sleeps_then) arrival = carrier_.until_arrival(since);
        }
    } catch (...) { end_with_caught(); }
    stop_reading();
    return moved ? Clock::duration::zero() : arrival;
}

/// Unless there was something to move after all, which is what it returns.
bool PointToPoint::sleep(Lock &lock, const Condition &condition, Clock::time_point until) {
    const Sleeper sleeper(members_.own());
    const auto now = Clock::now();
    if (step(Round::thorough) || condition()) return true;
    const auto arrival = carrier_.until_arrival(now);
    stop_reading();
    lock.unlock();
    sleeper.sleep(std::min<std::chrono::nanoseconds>({attention, arrival, until - Clock::now()}));
    lock.lock();
    return false;
}

/// One round of the machine; whether it moved anything. A failure ends all operations. A thorough one looks at what
/// members have written down although no alarm was raised; where something begins, nothing is kept of what others may
/// be about to ask for.
bool PointToPoint::step(Round round) {
    if (failure_) return false;
    ControlPage &page = members_.own();
    bool moved = false;
    try {
        start_reading(); // before the look at the alarm: a member that fails waits until this has ended, or is heard
                         // now
        std::vector<int> closed;
        if (round == Round::thorough || page.alarm.load(std::memory_order_seq_cst) != seen_alarm_) closed = examine();
        moved = matcher_.advance(round != Round::beginning);
        check_read();
        collect(); // what was kept here is received, though who sent it has closed since
        if (!moved && !closed.empty()) look_for_closed(closed);
        if (!moved && round == Round::thorough) look_for_lost();
    } catch (...) {
        end_with_caught();
        return true;
    }
    return moved;
}

/// Throws what members have written down of failures; returns those that have closed, and of which no message is still
/// on its way: all that they have ever sent can be read.
std::vector<int> PointToPoint::examine() {
    seen_alarm_ = members_.own().alarm.load(std::memory_order_seq_cst);
    if (const auto recorded = members_.recorded_failure()) throw *recorded;
    if (const auto death = members_.find_death(0)) throw *death;
    std::vector<int> closed;
    for (int member = 0; member < members_.size(); ++member) {
        if (members_.has_closed(member) && !carrier_.is_coming(member)) closed.push_back(member);
    }
    return closed;
}

/// All that the members in `closed` have ever sent is read: who still waits for one waits in vain.
void PointToPoint::look_for_closed(const std::vector<int> &closed) const {
    const auto has_closed = [&](int member) { return std::ranges::find(closed, member) != closed.end(); };
    for (const auto &operation : pending_) {
        if (state_->closing && operation->is_awaited_receive()) continue; // close() ends it
        const auto members = awaited(*operation);
        if (!members.empty() && std::ranges::all_of(members, has_closed)) throw left_by(members.front(), *operation);
    }
}

/// A message to or from one of them may be lost, though it lives.
void PointToPoint::look_for_lost() {
    std::vector<int> members;
    for (const auto &operation : pending_) std::ranges::copy(awaited(*operation), std::back_inserter(members));
    const auto is_broken = [this](int member) { return carrier_.is_broken(member); };
    if (const auto lost = members_.find_lost(members, is_broken, 0, broken_since_)) throw *lost;
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

std::string PointToPoint::name_of_peer(const Operation &operation) const {
    return operation.peer == any_source ? "any rank" : members_.name_of(operation.peer);
}

/// "recv from rank 2 (tag 7)".
std::string PointToPoint::label(const Operation &operation) const {
    const std::string peer = name_of_peer(operation);
    const bool sends = operation.sends;
    if (operation.scope == Scope::internal) return "making a communicator with " + peer;
    if (operation.scope == Scope::objects && *operation.tag > Matcher::max_user_tag)
        return (sends ? "sending a part of an object to " : "receiving a part of an object from ") + peer;
    const char *const object = operation.scope == Scope::objects ? "_object" : "";
    return (sends ? "send" : "recv") + std::string(object) + (sends ? " to " : " from ") + peer +
           (operation.tag ? " (tag " + std::to_string(*operation.tag) + ")" : " (any tag)");
}

/// Of a receive that no message has met: what came instead, and no receive asks for, in words; "" where there is
/// nothing.
std::string PointToPoint::unwanted(const Operation &operation) const {
    if (operation.sends || operation.scope == Scope::internal || operation.source != any_source) return "";
    const auto messages = matcher_.unmatched();
    const auto is_from_there = [&](const Unmatched &one) {
        return operation.peer == any_source || one.peer == operation.peer;
    };
    const auto has_tag = [&](const Unmatched &one) { return !operation.tag || one.tag == *operation.tag; };
    const auto is_alike = [&](const Unmatched &one) { return one.scope == operation.scope; };
    const auto likelihood = [&](const Unmatched &one) {
        if (is_from_there(one)) return has_tag(one) ? 4 : is_alike(one) ? 3 : 2; // 4: it is of the other scope
        return has_tag(one) && is_alike(one) ? 1 : 0;
    };
    const auto found = std::ranges::max_element(messages, {}, likelihood);
    if (found == messages.end() || likelihood(*found) == 0) return "";
    const std::string me = members_.name_of(members_.rank());
    const std::string sent = members_.name_of(found->peer) + " has sent " + me;
    if (!is_alike(*found)) {
        const bool is_object = found->scope == Scope::objects;
        return sent + (is_object ? " an object, which recv_object() takes; " : " an array, which recv() takes; ") + me +
               " waits for " + (is_object ? "an array" : "an object");
    }
    const char *const what = operation.scope == Scope::objects ? " an object" : " a message";
    return sent + what + " with tag " + std::to_string(found->tag) + ", which no receive asks for; " + me +
           " waits for " + (operation.tag ? "tag " + std::to_string(*operation.tag) : "any tag") + " from " +
           name_of_peer(operation) +
           (is_from_there(*found) ? ": use one tag for both" : ": check dst of the send and src of the receive");
}

/// Another operation may have failed first, as the same member has closed.
void PointToPoint::tell_own_need(Operation &operation) const {
    const auto members = awaited(operation);
    const auto has_left = [&](int member) {
        return std::ranges::count(failure_->missing, members_.rank_of(member)) > 0;
    };
    if (failure_->cause != Cause::aborted || !std::ranges::all_of(members, has_left)) return;
    operation.failure->text = left_by(members.front(), operation).text;
}

/// A member has closed, and this operation needs it.
Failure PointToPoint::left_by(int member, const Operation &operation) const {
    const std::string instead = unwanted(operation),
                      waits = members_.name_of(members_.rank()) + " is in " + label(operation);
    return closed_failure(member, 0, waits + (instead.empty() ? does_each_match : "; " + instead));
}

void PointToPoint::collect() {
    if (matcher_.num_done() == seen_done_) return;
    seen_done_ = matcher_.num_done();
    std::erase_if(pending_, [this](const std::shared_ptr<Operation> &operation) {
        if (!operation->done) return false;
        end(*operation);
        return true;
    });
    if (pending_.empty()) state_->doze.note_done();
    if (state_->num_waiting > 0) state_->changed.notify_all();
}

void PointToPoint::end(Operation &operation) {
    if (operation.launching.at != 0) [[unlikely]]
        record(operation);
    operation.finish();
}

void PointToPoint::check_deadlines(Clock::time_point now) {
    if (now < next_deadline_) return;
    step(Round::thorough); // it may be done by now, or there is a better reason
    std::shared_ptr<Operation> late;
    next_deadline_ = Clock::time_point::max();
    for (const auto &operation : pending_) {
        next_deadline_ = std::min(next_deadline_, operation->deadline);
        if (operation->deadline <= now && !late) late = operation;
    }
    if (!late) return;
    Failure failure(Cause::timeout, members_.rank(), unwanted(*late));
    failure.seconds = std::chrono::duration<double>(late->timeout).count();
    failure.missing = awaited(*late);
    if (failure.text.empty()) failure.text = members_.circle();
    end_with(failure);
}

void PointToPoint::give_up(const std::string &reason) { end_with(Failure(Cause::aborted, members_.rank(), reason)); }

/// Inside a handler of what has been thrown, perhaps of an operation that is not pending.
void PointToPoint::end_with_caught(Operation *operation) {
    if (operation != nullptr) pending_.emplace_back(std::shared_ptr<void>(), operation);
    try {
        throw;
    } catch (const Failure &failure) {
        // The memory of a peer that gave up may be gone.
        const auto recorded = failure.cause == Cause::resource ? members_.recorded_failure() : std::nullopt;
        end_with(recorded ? *recorded : failure);
    } catch (const std::bad_alloc &) {
        errno = ENOMEM;
        end_with(Failure::resource("allocation of memory for a message"));
    } catch (const std::exception &error) { // as of a stream while the process ends
        give_up(error.what());
    }
}

/// The machine stands still from here on. Waits for those that still read what was lent, which takes them no wait of
/// their own, so the lock may be held.
void PointToPoint::end_with(Failure failure) {
    if (!failure_) {
        if (failure.cause == Cause::resource || failure.cause == Cause::internal) { // tells the others in their words
            members_.record(Failure(Cause::aborted, members_.rank(), failure.text));
        } else {
            failure = members_.settle(failure);
        }
        members_.address(failure);
        failure_ = std::move(failure);
        members_.await_readers(
            &ControlPage::in_messages, 1, [this] { carrier_.withdraw(); },
            [this](int member) { return may_be_used_by(carrier_, member); });
    }
    for (Operations *const operations : {&pending_, &deferred_}) {
        for (const auto &operation : *operations) {
            has_raised_ = true;
            operation->failure = failure_;
            if (failure_->sequence == 0) {
                operation->failure->label = label(*operation);
                tell_own_need(*operation);
            }
            end(*operation);
        }
        operations->clear();
    }
    state_->changed.notify_all();
}

} // namespace hocket
