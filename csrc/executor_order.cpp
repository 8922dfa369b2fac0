// The part of the executor that does short tasks one after the other, as long as none has to wait for long.

#include "executor.h"

#include <algorithm>
#include <set>
#include <utility>

namespace hocket {

/// One order for all tasks: that of the plan, but what waits for no message goes ahead of what does.
void Executor::find_order() {
    std::vector<std::vector<std::size_t>> followers(tasks_.size());
    std::vector<std::size_t> num_before(tasks_.size());
    const auto follows = [&](std::size_t after, std::size_t before) {
        followers[before].push_back(after);
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
    std::size_t least = tasks_.size(); // of all behind
    for (std::size_t at = order_.size(); at-- > 0;) {
        order_[at]->holds_up_rest = least > at;
        least = std::min(least, awaited[at]);
    }
}

/// Does a short task in one go. False where it has to wait, or goes on in parts and so out of order.
bool Executor::do_whole(Task &task) {
    if (!task.peers.empty()) {
        const Bytes bytes(task.sources[0], task.num_bytes);
        const std::size_t num_published = transport_.publish(task.peers, bytes, launch_.tag, false).num_bytes;
        if (num_published == bytes.size()) return true;
        if (num_published > 0) {
            leave_order();
            task.within = num_published;
            ++num_moves_;
        }
        return false;
    }
    operands_.clear();
    for (std::size_t i = 0; i < task.sources.size(); ++i) {
        const Operand &source = task.instruction->sources[i];
        if (source.space != Space::remote) {
            operands_.push_back(task.sources[i]);
            continue;
        }
        const View view = transport_.view(source.peer);
        if (view.bytes.size() < task.num_bytes || view.attached) {
            if (!view.bytes.empty()) leave_order();
            return false;
        }
        if (view.tag != launch_.tag) throw ForeignMessage{source.peer};
        operands_.push_back(view.bytes.data());
    }
    store(task, fold_of(task), task.destination, task.num_bytes);
    for (const Remote &remote : task.remotes) transport_.release(receives_[remote.cursor].peer, task.num_bytes);
    return true;
}

/// Goes through short tasks one after the other. So each finds that it is its turn on its channels, and that what it
/// depends on is done: none has to be looked for. True when all are done; false where one has to wait.
bool Executor::run_in_order() {
    for (; next_ < order_.size(); ++next_) {
        if (budget_ <= 0 || !do_whole(*order_[next_])) return false;
        --budget_;
        ++num_moves_;
    }
    return true;
}

/// From now on tasks go ahead of those that wait, and in parts.
void Executor::leave_order() {
    if (!std::exchange(in_order_, false)) return;
    const int budget = budget_;
    rewind();
    for (std::size_t index = 0; index < next_; ++index) {
        ++order_[index]->settled;
        finish_piece(*order_[index]);
    }
    budget_ = budget;
}

} // namespace hocket
