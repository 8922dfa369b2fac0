// The state of a simulation, to be held against that of an earlier time.
#pragma once

#include "simulator/problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hocket::simulator {

/// A time, and the step that one actor is in then, of the repeat that goes from one step to another.
struct Moment {
    double seconds = 0;
    std::int32_t step = 0, repeat_begin = 0, repeat_end = 0;
};

/// All that the rest of a simulation depends on, as numbers that are the same again when it has only moved on, by some
/// time and some repetitions of a repeat. They are written down at one moment and compared as they are listed at
/// others, which need not go on once something differs.
class Snapshot {
  public:
    void write(const Moment &moment) {
        moment_ = moment;
        writes_ = same_ = true;
        values_.clear();
    }
    void compare(const Moment &moment) {
        moment_ = moment;
        writes_ = false;
        same_ = true;
        next_ = 0;
    }
    bool same() const { return same_; }
    /// All has been listed; whether it is what was written down.
    bool finish() {
        if (same_) put_pending();
        pending_.clear();
        return same_ && (writes_ || next_ == values_.size());
    }

    void whole(std::int64_t value) { put(static_cast<double>(value), 0); }
    void amount(double value) { put(value, value * same_amount); }
    /// Times that have passed are all alike.
    void time(double seconds) { put(std::max(0.0, seconds - moment_.seconds), moment_.seconds * same_time); }
    void step(std::int32_t step) { whole(place_of(step)); }
    void travel(const Travel &travel) {
        whole(travel.message);
        whole(travel.piece);
        step(travel.step);
    }
    /// What happens at a time that is known, in any order: each with numbers that no other has.
    void pending(std::int64_t kind, std::int64_t subject, double seconds) {
        pending_.push_back({{kind, subject}, seconds});
    }
    void pending(std::int64_t kind, const Travel &travel, double seconds) {
        pending_.push_back({{kind, travel.message, travel.piece, place_of(travel.step)}, seconds});
    }

  private:
    static constexpr double same_time = 1e-14;   // of the time so far: rounding
    static constexpr double same_amount = 1e-12; // of an amount
    static constexpr std::int64_t outside = std::int64_t{1} << 33;

    struct Pending {
        std::array<std::int64_t, 4> what;
        double seconds;
    };

    std::int64_t place_of(std::int32_t step) const {
        const bool inside = moment_.repeat_begin <= step && step < moment_.repeat_end;
        return inside ? step - moment_.step : outside + step;
    }
    void put_pending() {
        std::ranges::sort(pending_, {}, &Pending::what);
        for (const Pending &one : pending_) {
            for (const std::int64_t number : one.what) whole(number);
            time(one.seconds);
        }
    }
    void put(double value, double tolerance) {
        if (writes_) {
            values_.push_back(value);
        } else if (same_) {
            same_ =
                next_ < values_.size() && (values_[next_] == value || std::abs(values_[next_] - value) <= tolerance);
            ++next_;
        }
    }

    Moment moment_;
    bool writes_ = true, same_ = true;
    std::vector<double> values_;
    std::size_t next_ = 0; // of the values: the one to compare with
    std::vector<Pending> pending_;
};

} // namespace hocket::simulator
