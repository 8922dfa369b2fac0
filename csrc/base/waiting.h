// How ranks wait: they try for a while, then sleep on the bell, and look up now and then.
#pragma once

#include <chrono>
#include <functional>
#include <sched.h>

namespace hocket {

using Clock = std::chrono::steady_clock;
/// What a caller wants to be told of during a call.
using Hook = std::function<void()>;

inline constexpr std::chrono::milliseconds attention{100}; // between looks at signals, clocks and what peers wrote down
inline constexpr std::chrono::milliseconds short_attention{1}; // where another thread just has what is looked at
inline constexpr std::chrono::microseconds spin_time{200};
inline constexpr std::chrono::seconds stall_time{5};
inline constexpr std::chrono::milliseconds yield_time{10};
/// Of a rank that shares its core, while nobody that it waits for needs this core: as long as it takes to let another
/// rank run and to come back.
inline constexpr std::chrono::microseconds linger_time{4};
inline constexpr unsigned max_yields = 1000;
/// Of yields one after another that let nobody run, each shorter than `idle_yield`. Then no rank needs the core, or one
/// that does belongs to another session or container: the scheduler may divide the core among those first, and there
/// only sleeping makes room.
inline constexpr unsigned max_idle_yields = 24;
inline constexpr std::chrono::microseconds idle_yield{1};
inline constexpr unsigned polls_per_look = 64; // at the clock, while spinning
/// Of a thread that hands its work to another one, or gets it from there: to be woken takes longer.
inline constexpr unsigned yields_before_sleep = 100;
inline constexpr unsigned yields_per_look = 8; // fewer, as on a busy machine each may take many milliseconds
/// Of a call on a rank that spins, before it counts as waiting: some tens of microseconds.
inline constexpr unsigned polls_before_wait = 500;

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); // some tens of cycles; `yield` takes none on most cores
#endif
}

/// How long a wait tries on before it had better sleep, and what it does between two tries. A rank that has a core
/// spins, as a sleeper is woken late; others let the others run, until so many times show that none needs the core.
class Patience {
  public:
    explicit Patience(bool spins, unsigned yields = max_yields, unsigned idle_yields = max_idle_yields)
        : spins_(spins), max_yields_(yields), max_idle_yields_(idle_yields) {}
    /// Of who is told when to look again, or sleeps until it is rung.
    static Patience none() { return Patience(false, 0); }

    bool spins() const { return spins_; }
    /// Something has moved, so more may come soon. A bell alone says nothing: it may have rung for what others await.
    void renew() {
        polls_ = 0;
        over_ = false;
    }
    /// After a try in vain: whether it is time to look at the clock.
    bool wants_clock() { return polls_++ % (spins_ ? polls_per_look : yields_per_look) == 0 || is_over(); }
    void look(Clock::time_point now) {
        if (polls_ == 1) {
            try_until_ = now + (spins_ ? std::chrono::nanoseconds(spin_time) : yield_time);
            idle_yields_ = 0;
        } else {
            idle_yields_ = now - looked_ < yields_per_look * idle_yield ? idle_yields_ + yields_per_look : 0;
        }
        looked_ = now;
        over_ = over_ || now >= try_until_ || (!spins_ && idle_yields_ >= max_idle_yields_);
    }
    /// Then a sleep comes before each further try, until renew().
    bool is_over() const { return over_ || (!spins_ && polls_ > max_yields_); }
    /// Whether it looks at the clock for more than the first time since something moved.
    bool has_looked() const { return polls_ > 1; }
    void pass() const {
        if (spins_) relax();
        else sched_yield();
    }
    /// Tries until it is over; whether the condition held before.
    template <typename Condition> bool try_until(const Condition &condition) {
        while (!condition()) {
            if (wants_clock()) look(Clock::now());
            if (is_over()) return false;
            pass();
        }
        return true;
    }

  private:
    bool spins_;
    unsigned max_yields_, max_idle_yields_;
    unsigned polls_ = 0, idle_yields_ = 0;
    bool over_ = false;
    Clock::time_point try_until_{}, looked_{};
};

} // namespace hocket
