// What the targets of the core read: an input is a script, whose commands say what a peer sends, how it arrives, and
// what this rank does meanwhile.
#pragma once

#include "base/types.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

/// A property that does not hold is a finding: main.cpp prints the input.
#define HOLDS(CONDITION)                                                                                               \
    do {                                                                                                               \
        if (!(CONDITION)) hocket::fuzz::report_and_abort(__FILE__, __LINE__, #CONDITION);                              \
    } while (false)

namespace hocket::fuzz {

[[noreturn]] inline void report_and_abort(const char *file, int line, const char *condition) {
    std::fprintf(stderr, "%s:%d: this does not hold: %s\n", file, line, condition);
    std::abort();
}

/// Behind its end a script is all zeros.
class Script {
  public:
    explicit Script(Bytes bytes) : left_(bytes) {}

    bool has_more() const { return !left_.empty(); }
    Bytes take(std::size_t num_bytes) {
        const Bytes taken = left_.first(std::min(num_bytes, left_.size()));
        left_ = left_.subspan(taken.size());
        return taken;
    }
    std::uint64_t number(std::size_t num_bytes) {
        std::uint64_t value = 0;
        const Bytes taken = take(num_bytes);
        std::memcpy(&value, taken.data(), taken.size());
        return value;
    }
    /// Lengths at which something changes are frequent, and long ones, which take time, are rare.
    std::size_t length(std::size_t most) {
        const std::uint64_t code = number(1);
        if (code < 200) return code % 72;
        if (code < 248) return number(2) % 4096;
        if (code < 252) return most - std::min<std::uint64_t>(number(1), most);
        return number(3) % (most + 9);
    }

  private:
    Bytes left_;
};

/// Each of them handles one input, and finds that HOLDS() holds.
void fuzz_frames(Bytes input);
void fuzz_numbers(Bytes input);
void fuzz_messages(Bytes input);
void fuzz_news(Bytes input);

} // namespace hocket::fuzz
