// The interpreter lock of this thread, for a scope.
//
// Python ends a thread that asks for the interpreter lock while the interpreter ends, by unwinding its stack.
// Destructors, and nanobind, would make an abort of the process out of that; so such a thread sleeps instead until the
// process ends.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

[[noreturn]] inline void sleep_until_process_ends() {
    for (;;) pause();
}

/// Called at the end of a scope that holds the lock. If Python has ended this thread, the lock is gone, and it sleeps.
inline void sleep_if_ended() {
    if (PyGILState_Check() == 0) sleep_until_process_ends();
}

/// Declare it after the references of a scope and before the call of Python. If Python ends the thread in that call,
/// the references are never given back without the lock.
class CallOfPython {
  public:
    CallOfPython() = default;
    CallOfPython(const CallOfPython &) = delete;
    CallOfPython &operator=(const CallOfPython &) = delete;
    ~CallOfPython() { sleep_if_ended(); }
};

/// Takes the lock again that this thread has given up.
inline void take_lock_back(PyThreadState *state) noexcept {
    try {
        PyEval_RestoreThread(state);
    } catch (...) { sleep_until_process_ends(); } // the stack is unwound: Python throws nothing
}

/// Has the interpreter lock.
class WithLock {
  public:
    WithLock() noexcept {
        if (Py_IsInitialized() == 0) sleep_until_process_ends();
        try {
            state_ = PyGILState_Ensure();
        } catch (...) { sleep_until_process_ends(); } // as above
    }
    WithLock(const WithLock &) = delete;
    WithLock &operator=(const WithLock &) = delete;
    ~WithLock() {
        sleep_if_ended();
        PyGILState_Release(state_);
    }

  private:
    PyGILState_STATE state_;
};

/// Gives up the interpreter lock.
class WithoutLock {
  public:
    WithoutLock() : state_(PyEval_SaveThread()) {}
    WithoutLock(const WithoutLock &) = delete;
    WithoutLock &operator=(const WithoutLock &) = delete;
    ~WithoutLock() { take_lock_back(state_); }

  private:
    PyThreadState *state_;
};

/// The interpreter lock, which is given up when it is time.
class LockUntilWait {
  public:
    LockUntilWait() = default;
    LockUntilWait(const LockUntilWait &) = delete;
    LockUntilWait &operator=(const LockUntilWait &) = delete;
    ~LockUntilWait() {
        if (state_ != nullptr) take_lock_back(state_);
    }
    void release() {
        if (state_ == nullptr) state_ = PyEval_SaveThread();
    }

  private:
    PyThreadState *state_ = nullptr;
};
