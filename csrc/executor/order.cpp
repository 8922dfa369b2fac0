// The part of the executor that does short tasks in one order, and goes around those that have to wait.

#include "base/error.h"
#include "executor/executor.h"

#include <algorithm>
#include <set>
#include <utility>

namespace hocket {

/// One order for all tasks: that of the plan, but what waits for no message goes ahead of what does.
void Executor::find_order() {
    std::vector<std::vector<std::size_t>> followers(tasks_.size());
    std::vector<std::size_t> num_before(tasks_.size());
    std::vector<std::vector<std::size_t>> before_each(tasks_.size());
    const auto follows = [&](std::size_t after, std::size_t before) {
        followers[before].push_back(after);
        before_each[after].push_back(before);
        ++num_before[after];
    };
    for (std::size_t index = 0; index < tasks_.size(); ++index) {
        for (std::int32_t before : tasks_[index].instruction->dependencies)
            follows(index, static_cast<std::size_t>(before));
    }
    for (const auto *cursors : {&sends_, &receives_}) {
        for (const Cursor &cursor : *cursors) {
            for (std::size_t i = 1; i < cursor.entries.size(); ++i)
                follows(cursor.entries[i].task, cursor.entries[i - 1].task);
        }
    }
    std::set<std::pair<bool, std::size_t>> next;
    const auto add = [&](std::size_t index) { next.emplace(!tasks_[index].remotes.empty(), index); };
    for (std::size_t index = 0; index < tasks_.size(); ++index) {
        if (num_before[index] == 0) add(index);
    }
    std::vector<std::size_t> awaited; // in that order: of what a task waits for the last, counted from 1
    std::vector<std::size_t> last_before(tasks_.size());
    while (!next.empty()) {
        const std::size_t index = next.extract(next.begin()).value().second;
        order_.push_back(&tasks_[index]);
        awaited.push_back(last_before[index]);
        for (std::size_t after : followers[index]) {
            last_before[after] = order_.size();
            if (--num_before[after] == 0) add(after);
        }
    }
    std::vector<std::size_t> place_of(tasks_.size());
    for (std::size_t at = 0; at < order_.size(); ++at)
        place_of[static_cast<std::size_t>(order_[at] - tasks_.data())] = at;
    for (std::size_t index = 0; index < tasks_.size(); ++index) {
        for (std::size_t before : before_each[index]) tasks_[index].comes_after.push_back(place_of[before]);
    }
    std::size_t least = tasks_.size(); // of all behind
    for (std::size_t at = order_.size(); at-- > 0;) {
        order_[at]->holds_up_rest = least > at;
        least = std::min(least, awaited[at]);
    }
}

/// Does what can be done now of a short task. True when that was the rest of it.
bool Executor::do_short(Task &task) {
    if (!task.peers.empty()) {
        const Bytes bytes(task.sources[0], task.num_bytes);
        const std::size_t num_published = transport_.publish(task.peers, bytes, launch_.tag, false).num_bytes;
        if (num_published == 0) return false;
        if (num_published < bytes.size()) throw Failure::internal("a transport has accepted only a part of a piece");
        ++num_moves_;
        return true;
    }
    const std::size_t element = size_of(launch_.dtype);
    do {
        std::size_t available = task.num_bytes - task.within;
        operands_.clear();
        for (std::size_t i = 0; i < task.sources.size(); ++i) {
            const Operand &source = task.instruction->sources[i];
            if (source.space != Space::remote) {
                operands_.push_back(task.sources[i] + task.within);
                continue;
            }
            const View view = transport_.view(source.peer);
            if (view.bytes.empty()) return false;
            if (view.tag != launch_.tag) throw ForeignMessage{source.peer};
            if (view.bytes.size() < available) available = view.bytes.size() & ~(element - 1);
            if (available == 0 || view.attached) {
                leave_order();
                return false;
            }
            operands_.push_back(view.bytes.data());
        }
        store(task, fold_of(task), task.destination + task.within, available);
        for (const Remote &remote : task.remotes) transport_.release(receives_[remote.cursor].peer, available);
        task.within += available;
        ++num_moves_;
    } while (task.within < task.num_bytes);
    task.within = 0;
    return true;
}

/// Whether all that a task comes after in the order is done.
bool Executor::may_go(const Task &task) const {
    return std::ranges::all_of(task.comes_after, [this](std::size_t at) { return is_done(at); });
}

/// Goes through short tasks one after the other. So each finds that it is its turn on its channels, and that what it
/// depends on is done: none has to be looked for. True when all are done; false where one has to wait.
bool Executor::run_in_order() {
    if (ahead_.empty()) {
        for (; next_ < order_.size(); ++next_) {
            if (budget_ <= 0 || !do_short(*order_[next_])) break;
            --budget_;
        }
        if (next_ == order_.size()) return true;
        if (budget_ <= 0 || !in_order_ || order_[next_]->holds_up_rest) return false;
    }
    return run_around();
}

/// The same where one waits: those behind it go ahead that do not wait for it.
bool Executor::run_around() {
    ahead_.resize(order_.size());
    for (std::size_t at = next_; at < order_.size() && budget_ > 0; ++at) {
        Task &task = *order_[at];
        if (is_done(at) || !may_go(task)) continue;
        if (do_short(task)) {
            --budget_;
            ahead_[at] = true;
        } else if (!in_order_ || task.holds_up_rest) {
            break;
        }
    }
    while (next_ < order_.size() && is_done(next_)) ++next_;
    return next_ == order_.size();
}

/// From now on tasks go in parts.
void Executor::leave_order() {
    if (!std::exchange(in_order_, false)) return;
    const int budget = budget_;
    std::vector<std::size_t> within;
    for (const Task *task : order_) within.push_back(task->within);
    rewind();
    for (std::size_t at = 0; at < order_.size(); ++at) {
        order_[at]->within = within[at];
        if (!is_done(at)) continue;
        ++order_[at]->settled;
        finish_piece(*order_[at]);
    }
    budget_ = budget;
}

} // namespace hocket
