// The framework: a table in which tests register, and a check that says what it found. One failure ends a test, on any
// thread: it is an exception, and World carries it to the main thread.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace hocket::test {

struct CheckFailed final : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// A test that cannot run in this build says why.
struct Skipped final : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Test {
    const char *name;
    void (*body)();
};

std::vector<Test> &tests();

struct Entry {
    Entry(const char *name, void (*body)()) { tests().push_back({name, body}); }
};

#if defined(__SANITIZE_THREAD__)
inline constexpr bool thread_sanitizer = true;
#else
inline constexpr bool thread_sanitizer = false;
#endif

} // namespace hocket::test

#define TEST(NAME)                                                                                                     \
    static void NAME();                                                                                                \
    static const hocket::test::Entry entry_##NAME{#NAME, NAME};                                                        \
    static void NAME()

/// CHECK(condition, what, was, found): the rest is only built when the condition does not hold.
#define CHECK(CONDITION, ...)                                                                                          \
    do {                                                                                                               \
        if (!(CONDITION)) hocket::test::fail_check(__FILE__, __LINE__, #CONDITION __VA_OPT__(, ) __VA_ARGS__);         \
    } while (false)

namespace hocket::test {

template <typename... Parts>
[[noreturn]] void fail_check(const char *file, int line, const char *condition, const Parts &...parts) {
    std::ostringstream text;
    text << file << ':' << line << ": " << condition;
    if constexpr (sizeof...(parts) > 0) {
        text << ':';
        ((text << ' ' << parts), ...);
    }
    throw CheckFailed(text.str());
}

} // namespace hocket::test
