#include "streams/mark.h"

#include "base/error.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

namespace hocket {
namespace {

constinit thread_local const void *owner_here = nullptr;

} // namespace

Mark::Runs::Runs(const void *owner) : outer_(std::exchange(owner_here, owner)) {}
Mark::Runs::~Runs() { owner_here = outer_; }

void Mark::pass(std::exception_ptr failure, Clock::time_point time) {
    failure_ = std::move(failure);
    time_ = time;
    if (state_.exchange(passed, std::memory_order_acq_rel) == awaited) futex_wake(state_);
}

bool Mark::is_passed() const {
    home_.check();
    return state_.load(std::memory_order_acquire) == passed;
}

void Mark::check_awaitable() const {
    if (owner_ == nullptr || owner_ != owner_here || is_passed()) return;
    throw std::runtime_error(
        "a function in a stream told that stream to wait for itself; wait after the function has returned");
}

bool Mark::wait(std::chrono::nanoseconds limit) {
    if (is_passed()) return true;
    if (limit.count() <= 0) return false;
    check_awaitable();
    if (Patience(false, yields_before_sleep, yields_before_sleep).try_until([this] { return is_passed(); }))
        return true;
    const auto until = Clock::now() + std::min<std::chrono::nanoseconds>(limit, std::chrono::hours(1 << 16));
    for (;;) {
        std::uint32_t found = pending;
        if (!state_.compare_exchange_strong(found, awaited, std::memory_order_acq_rel) && found == passed) return true;
        const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until - Clock::now());
        if (left.count() <= 0) return false;
        futex_wait(state_, awaited, left);
    }
}

std::string text_of(const std::exception_ptr &failure) {
    try {
        std::rethrow_exception(failure);
    } catch (const Failure &error) {
        constexpr std::array causes{"", "ranks differed", "a time-out", "a rank died", "a rank gave up", "a fork"};
        const auto cause = static_cast<std::size_t>(error.cause);
        if (!error.text.empty() || cause >= causes.size()) return error.text;
        return causes[cause];
    } catch (const std::exception &error) { return error.what(); } catch (...) {
        return "an unknown error";
    }
}

} // namespace hocket
