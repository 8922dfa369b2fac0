// Events in the order of time, and of their making where times are equal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace hocket::simulator {

enum class Kind : std::uint8_t {
    start,    // a lane: its job starts
    send,     // a travel: its sender is ready to send it
    flown,    // a channel: the flow in it has ended
    arrive,   // a travel: it is there
    gathered, // a lane: all it waited for is there
    worked,   // a lane: its work is done
    served,   // a link: it has sent a packet
    hop,      // a packet: it has reached the next node
};

struct Event {
    double seconds;
    std::uint64_t number;
    std::int32_t subject;
    std::uint32_t version; // of a flow: an older one is out of date
    Kind kind;

    bool operator>(const Event &other) const {
        return seconds != other.seconds ? seconds > other.seconds : number > other.number;
    }
};

class Queue {
  public:
    void push(double seconds, Kind kind, std::int32_t subject, std::uint32_t version = 0) {
        heap_.push_back({seconds, number_++, subject, version, kind});
        std::ranges::push_heap(heap_, std::greater<>());
    }
    Event pop() {
        std::ranges::pop_heap(heap_, std::greater<>());
        const Event event = heap_.back();
        heap_.pop_back();
        return event;
    }
    bool empty() const { return heap_.empty(); }
    double next_seconds() const { return heap_.front().seconds; }
    /// All that are to come, in no order.
    const std::vector<Event> &events() const { return heap_; }

  private:
    std::vector<Event> heap_;
    std::uint64_t number_ = 0;
};

/// Things that come and go, each with a number as long as it is there.
template <typename T> class Pool {
  public:
    std::int32_t add(const T &value) {
        if (free_.empty()) {
            values_.push_back(value);
            return static_cast<std::int32_t>(values_.size() - 1);
        }
        const std::int32_t number = free_.back();
        free_.pop_back();
        (*this)[number] = value;
        return number;
    }
    void remove(std::int32_t number) { free_.push_back(number); }
    T &operator[](std::int32_t number) { return values_[static_cast<std::size_t>(number)]; }
    /// All that are there, and some that are not.
    std::vector<T> &all() { return values_; }

  private:
    std::vector<T> values_;
    std::vector<std::int32_t> free_;
};

/// A list of what is in a pool, through the member `next`: first in first out, or sorted.
struct Line {
    std::int32_t first = -1, last = -1;

    bool empty() const { return first < 0; }
    template <typename T> void push(Pool<T> &pool, std::int32_t number) {
        pool[number].next = -1;
        if (empty()) {
            first = number;
        } else {
            pool[last].next = number;
        }
        last = number;
    }
    /// Puts one behind all that T::operator< does not place after it.
    template <typename T> void insert(Pool<T> &pool, std::int32_t number) {
        if (empty() || !(pool[number] < pool[last])) {
            push(pool, number);
            return;
        }
        std::int32_t *place = &first;
        while (!(pool[number] < pool[*place])) place = &pool[*place].next;
        pool[number].next = std::exchange(*place, number);
    }
    template <typename T> std::int32_t pop(Pool<T> &pool) {
        const std::int32_t number = first;
        first = pool[number].next;
        return number;
    }
    template <typename T, typename Each> void visit(Pool<T> &pool, const Each &each) const {
        for (std::int32_t number = first; number >= 0; number = pool[number].next) each(pool[number]);
    }
};

} // namespace hocket::simulator
