// What the calls of a communicator have come to in the core, remembered by their keys, and made again.
#pragma once

#include "bindings/calls/cached_calls.h"
#include "bindings/calls/call_key.h"
#include "bindings/calls/works.h"

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace hocket {

/// What a remembered call takes anew each time.
enum class Place { none, x, out };

/// What a call was given that may be other each time: arrays, null and no memory where there are none, and tags.
struct Operands {
    static constexpr std::int64_t no_tag = -1;

    PyObject *x_object = nullptr, *out_object = nullptr;
    Memory x, out;
    std::int64_t tag = no_tag, recv_tag = no_tag; // of messages; without a second one the first is meant

    PyObject *object_at(Place place) const {
        return place == Place::x ? x_object : place == Place::out ? out_object : nullptr;
    }
    const Memory &memory_at(Place place) const { return place == Place::x ? x : out; }
};

/// At a place of none it uses nothing, or memory of the communicator itself.
struct ReadyCollective {
    Call call;
    Launched *launched;
    Place input, output;
};

/// A send, a receive, or one of each: a receive has the last word in what is returned.
struct ReadyMessages {
    std::vector<Message> messages;
    std::vector<Place> places;
    std::chrono::nanoseconds timeout;
};

/// A collective or a message that is begun only, and returns a work of its own.
template <typename Of> struct Begun {
    Of of;
    WorkModel model;
};

using ReadyCall = std::variant<ReadyCollective, ReadyMessages, Begun<ReadyCollective>, Begun<ReadyMessages>>;

/// How a method makes the array that it returns where it was given none to write.
struct NewArray {
    nanobind::object by{}, shape{}, dtype{}; // by(shape, dtype); without a dtype x.by(shape); none: no such array
    std::vector<Word> kind{};                // what decides of it, as in a key

    /// Null where Python's exception is set.
    nanobind::object make(PyObject *x) const;
    /// As the out of a call. False of one of another kind, as x may make now, or of none that is plain.
    bool take(const nanobind::object &made, Operands &operands) const;
};

/// A call that was made before, ready to be made again with other memory. One thread at a time may run it.
struct Ready {
    Communicator &communicator;
    ReadyCall call;
    Place result;                       // the array that is returned, or comes first in what is; none: None
    std::size_t alignment;              // that its arrays need
    std::vector<nanobind::object> held; // what the references above and the key's words lead to
    bool x_is_written, out_is_written;  // as far as that was noted
    NewArray makes;                     // before each call, as its out
    PyObject *x_before, *out_before;    // of the last call by its key, for their addresses alone
    bool running = false, forgotten = false;

    /// Whether the arrays are those of the last call by its key, so that they may well come once more.
    bool is_given_again(const Operands &operands) {
        const bool same = x_before == operands.x_object && out_before == operands.out_object;
        x_before = operands.x_object;
        out_before = operands.out_object;
        return same;
    }
    bool fits(const Operands &operands) const {
        return (word_of(operands.x.data) | word_of(operands.out.data)) % alignment == 0;
    }
    bool writes(Place place) const { return place == Place::x ? x_is_written : out_is_written; }
};

/// The call that a method made last, as it was given: of one with the very same objects no key need be made.
struct Repeat {
    static constexpr std::size_t max_given = 8;

    const void *method;
    Ready *ready;
    std::size_t num_given;
    std::array<PyObject *, max_given> given; // constants, which `ready` and its method hold, and arrays
    nanobind::object names;
    SeenArray x, out;
    Operands operands;

    bool is_of(const void *called, std::span<PyObject *const> objects, PyObject *with_names,
               const PyTypeObject *array_type) const {
        if (called != method || objects.size() != num_given || with_names != names.ptr()) return false;
        for (std::size_t i = 0; i < num_given; ++i) {
            if (objects[i] != given[i]) return false;
        }
        return x.is_as_it_was(array_type) && out.is_as_it_was(array_type) && !ready->running;
    }
};

/// The ready calls of one communicator. The interpreter lock guards them.
class CallCache {
  public:
    CallCache() = default;
    CallCache(const CallCache &) = delete;
    CallCache &operator=(const CallCache &) = delete;
    ~CallCache() { forget(); }

    /// What a call of the method of this number has come to; null if none was like it.
    Ready *find(const Key &key, std::size_t number) {
        const Calls::value_type *&last = last_[number % last_.size()]; // most calls are like the one before
        if (last == nullptr || !KeyEqual{}(last->first, key.words())) {
            const auto found = calls_.find(key.words());
            if (found == calls_.end()) return nullptr;
            last = &*found;
        }
        return last->second.get();
    }
    void add(const Key &key, std::unique_ptr<Ready> ready) {
        if (calls_.size() >= max_calls) forget();
        calls_.try_emplace(std::vector<Word>(key.words().begin(), key.words().end()), std::move(ready));
    }
    /// Whether a call of this key is among the last ones that were missed; from now on it is.
    bool was_missed(const Key &key) {
        const std::size_t hash = KeyHash{}(key.words());
        if (std::ranges::find(missed_, hash) != missed_.end()) return true;
        missed_[num_missed_++ % missed_.size()] = hash;
        return false;
    }
    /// What the method of this number was given last, or one that shares its place; null if that is not known.
    std::unique_ptr<Repeat> &repeat_of(std::size_t number) { return repeats_[number % repeats_.size()]; }
    /// After this nothing that was decided before it is used again.
    void forget() {
        ++generation_;
        last_ = {};
        const auto repeats = std::exchange(repeats_, {});
        const auto calls = std::exchange(calls_, {});
        for (const auto &[key, ready] : calls) release(const_cast<std::unique_ptr<Ready> &>(ready));
    }
    std::uint64_t generation() const { return generation_; }

  private:
    static constexpr std::size_t max_calls = 4096;

    /// One that runs is deleted by whoever runs it.
    static void release(std::unique_ptr<Ready> &ready) {
        if (ready->running) ready.release()->forgotten = true;
    }

    using Calls = std::unordered_map<std::vector<Word>, std::unique_ptr<Ready>, KeyHash, KeyEqual>;

    static constexpr std::size_t num_places = 32; // more than there are methods, whose numbers follow each other

    Calls calls_;
    std::array<const Calls::value_type *, num_places> last_{};
    std::array<std::unique_ptr<Repeat>, num_places> repeats_;
    std::array<std::size_t, 64> missed_{}; // hashes: of two that are alike, one is remembered too soon
    std::size_t num_missed_ = 0;
    std::uint64_t generation_ = 0;
};

/// Stands while a call goes through Python, on the thread that makes it, and notes what it does in the core. A method
/// of a process group stands around one of its communicator.
class Miss {
  public:
    Miss();
    Miss(const Miss &) = delete;
    Miss &operator=(const Miss &) = delete;
    ~Miss();

    /// What the call has come to; null where that cannot be told from its arguments. `held` is what its key refers to.
    std::unique_ptr<Ready> come_to(Operands operands, nanobind::handle result, std::vector<nanobind::object> held);

    Miss *outer;           // that it stands in: a signal handler may call, too
    nanobind::object made; // the new array, if it has made one
    NewArray makes;
    int num_calls = 0;
    std::vector<PyObject *> written; // not to be looked into
    Communicator *communicator = nullptr;
    ReadyCall call;

  private:
    std::optional<Place> find_result(const Operands &operands, nanobind::handle result);
};

/// A method that is under way on this thread remembers that this object is written.
void note_written(PyObject *object);

/// The same, that it made this array for what comes out; not a method around it, which has arrays of its own.
void note_made(const nanobind::object &array, const NewArray &how);

/// Makes the call again, after `prepare`, which may run Python's code and says whether it has set no exception: a new
/// reference to its result, null where Python's exception is set.
PyObject *run(Ready &ready, const Operands &operands, bool (*prepare)(const Ready &, const Operands &) = nullptr);

} // namespace hocket
