// The little that we need of the system beyond the C++ library: futexes between processes, and signal masks.
#pragma once

#include "base/error.h"

#include <atomic>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <functional>
#include <linux/futex.h>
#include <memory>
#include <string>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace hocket {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

/// Sleeps while `word` is `expected`, at most for `limit`; may wake early.
inline void futex_wait(std::atomic<std::uint32_t> &word, std::uint32_t expected, std::chrono::nanoseconds limit) {
    const timespec relative{.tv_sec = static_cast<time_t>(limit.count() / 1'000'000'000),
                            .tv_nsec = static_cast<long>(limit.count() % 1'000'000'000)};
    syscall(SYS_futex, &word, FUTEX_WAIT, expected, &relative, nullptr, 0);
}

inline void futex_wait(std::atomic<std::uint32_t> &word, std::uint32_t expected) {
    syscall(SYS_futex, &word, FUTEX_WAIT, expected, nullptr, nullptr, 0);
}

inline void futex_wake(std::atomic<std::uint32_t> &word) {
    syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// A mutex of one process whose calls are inlined. To lock and to unlock it where nobody else wants it takes some 9 ns
/// less than with std::mutex, which a short message notices.
class Mutex {
  public:
    bool try_lock() {
        std::uint32_t found = free;
        return word_.compare_exchange_strong(found, locked, std::memory_order_acquire, std::memory_order_relaxed);
    }
    void lock() {
        if (try_lock()) return;
        while (word_.exchange(awaited, std::memory_order_acquire) != free) futex_wait(word_, awaited);
    }
    void unlock() {
        if (word_.exchange(free, std::memory_order_release) == awaited) futex_wake(word_);
    }

  private:
    static constexpr std::uint32_t free = 0, locked = 1, awaited = 2; // awaited: locked, and others may sleep

    /// What is guarded is stored before it says free, and seen once it says locked.
    std::atomic<std::uint32_t> word_{free};
};

/// A clock of unknown, constant speed, which takes less than half the time of the one that the system keeps.
inline std::uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

/// Grows in each forked child, once fork_generation() was called.
inline std::atomic<unsigned> generation{0};
unsigned fork_generation();

/// The process that this was made in. What stands beside it belongs there, threads and locks included, and not to a
/// forked child.
class HomeProcess {
  public:
    bool is_here() const { return generation_ == generation.load(std::memory_order_relaxed); }
    /// Throws in a forked child.
    void check() const {
        if (!is_here()) throw Failure::forked();
    }

  private:
    unsigned generation_ = fork_generation();
};

/// What the system maps at a time: 4 KiB on x86, up to 64 KiB elsewhere.
std::size_t page_bytes();

/// The number of the namespace that this process's id belongs to, unique on this machine; 0 where the system does not
/// tell.
std::uint64_t process_namespace();

/// Whether a process is stopped, by a signal or a debugger; false for one that cannot be asked about.
bool is_stopped(pid_t process);

/// Something of this process: a forked child inherits threads that do not run and locks that nobody returns, so there
/// it is never touched, not even to destroy it.
template <typename T> class OfThisProcess {
  public:
    ~OfThisProcess() {
        if (!is_here()) static_cast<void>(value_.release());
    }
    bool is_here() const { return home_.is_here(); }
    void check_here() const { home_.check(); }
    T &operator*() const { return *value_; }
    T *operator->() const { return value_.get(); }

  private:
    HomeProcess home_;
    std::unique_ptr<T> value_ = std::make_unique<T>();
};

/// Whether this thread is our own: what waits there for a communicator may wait for itself.
inline constinit thread_local bool is_own_thread = false;

/// Each of our own threads calls this first: signals belong to the program's threads, whose waits they shall interrupt.
inline void enter_own_thread() {
    is_own_thread = true;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

/// One of our own threads. Throws a resource failure where the system has none: of "starting `name`".
std::thread start_thread(const std::string &name, std::function<void()> run);

} // namespace hocket
