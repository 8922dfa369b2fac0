#include "bindings/calls/call_cache.h"

#include "bindings/calls/cached_method.h"
#include "bindings/python/blocking.h"

#include <algorithm>
#include <array>
#include <exception>
#include <nanobind/stl/shared_ptr.h>

namespace nb = nanobind;

namespace hocket {
namespace {

thread_local Miss *current_miss = nullptr;
int num_misses = 0; // on all threads: to look whether there are any is quicker. The interpreter lock guards it

// What a call has come to ---------------------------------------------------------------------------------------------

/// Where an address that a call has used came from.
Place place_of(const std::byte *address, const Operands &operands) {
    if (address == nullptr) return Place::none;
    if (address == operands.x.data) return Place::x;
    return address == operands.out.data ? Place::out : Place::none;
}

/// False where it uses what is not an operand, but may not be the communicator's own memory either.
bool find_places(ReadyCollective &of, const Operands &operands) {
    const std::byte *const input = of.call.launch.input, *const output = of.call.launch.output;
    of.input = place_of(input, operands);
    of.output = place_of(output, operands);
    const bool all_found =
        (input == nullptr || of.input != Place::none) && (output == nullptr || of.output != Place::none);
    return all_found || (operands.x.data == nullptr && operands.out.data == nullptr);
}

/// Where `out` is given it is what is received into, else x is.
bool find_places(ReadyMessages &of, const Operands &operands) {
    for (const Message &message : of.messages) {
        const Place place = message.sends || operands.out_object == nullptr ? Place::x : Place::out;
        if (message.data != (place == Place::x ? operands.x : operands.out).data) return false;
        of.places.push_back(place);
    }
    return true;
}

/// False where it uses memory of the communicator: that may be closed before it has ended.
template <typename Of> bool find_places(Begun<Of> &begun, const Operands &operands) {
    return (operands.x_object != nullptr || operands.out_object != nullptr) && find_places(begun.of, operands);
}

std::size_t alignment_needed(const ReadyCollective &of) { return alignment_of(of.call.launch.dtype); }

std::size_t alignment_needed(const ReadyMessages &of) {
    std::size_t alignment = 1;
    for (const Message &message : of.messages) alignment = std::max(alignment, alignment_of(message.dtype));
    return alignment;
}

template <typename Of> std::size_t alignment_needed(const Begun<Of> &begun) { return alignment_needed(begun.of); }

/// The array that comes back; where there are an x and an out that are one object, it is the out.
Place place_of_result(nb::handle result, const Operands &operands) {
    const nb::handle array = PyTuple_Check(result.ptr()) ? nb::handle(PyTuple_GET_ITEM(result.ptr(), 0)) : result;
    if (array.ptr() == operands.out_object) return Place::out;
    return array.ptr() == operands.x_object ? Place::x : Place::none;
}

// Making it again -----------------------------------------------------------------------------------------------------

/// Keeps a call for one thread.
class Turn {
  public:
    explicit Turn(Ready &ready) : ready_(ready) { ready_.running = true; }
    Turn(const Turn &) = delete;
    Turn &operator=(const Turn &) = delete;
    ~Turn() {
        ready_.running = false;
        if (ready_.forgotten) delete &ready_;
    }

  private:
    Ready &ready_;
};

/// Of what was received.
struct Envelope {
    bool is_there = false;
    int source = 0;
    std::uint64_t tag = 0;
};

/// Gives it the memory of this call.
inline void renew(ReadyCollective &of, const Operands &operands) {
    ++of.launched->num_calls;
    if (of.input != Place::none) of.call.launch.input = operands.memory_at(of.input).data;
    if (of.output != Place::none) of.call.launch.output = operands.memory_at(of.output).data;
}

/// And the tag.
inline void renew(ReadyMessages &of, const Operands &operands) {
    for (std::size_t i = 0; i < of.messages.size(); ++i) {
        Message &message = of.messages[i];
        message.data = operands.memory_at(of.places[i]).data;
        const bool has_own = !message.sends && operands.recv_tag != Operands::no_tag;
        const std::int64_t tag = has_own ? operands.recv_tag : operands.tag;
        if (message.tag && tag != Operands::no_tag) message.tag = static_cast<std::uint64_t>(tag); // else from any
    }
}

Envelope run(Communicator &communicator, const ReadyCollective &of, const Hook &interrupted, const Hook &before_wait) {
    if (num_misses > 0) note_call(communicator, *of.launched, of.call);
    communicator.run(of.call, interrupted, before_wait);
    return {};
}

/// Inside its caller, as a call of these takes a tenth of a small message's time.
[[gnu::always_inline]] inline Envelope run(Communicator &communicator, const ReadyMessages &of, const Hook &interrupted,
                                           const Hook &before_wait) {
    const auto run_all = [&](auto... messages) __attribute__((always_inline)) -> Envelope {
        std::array operations{Operation(*messages, of.timeout)...};
        communicator.messages().run(operations, interrupted, before_wait);
        const Operation &last = operations.back();
        return {.is_there = !last.sends, .source = last.source, .tag = last.found_tag};
    };
    const Message *const first = of.messages.data();
    return of.messages.size() == 1 ? run_all(first) : run_all(first, first + 1);
}

/// Of calls that are begun only. Apart from its caller, whose every call would be slower with it inside.
[[gnu::noinline]] PyObject *begin(Ready &ready, const Operands &operands, bool releases) {
    PyObject *const result = operands.object_at(ready.result);
    if (auto *launched = std::get_if<Begun<ReadyCollective>>(&ready.call)) {
        renew(launched->of, operands);
        return submit_call(launched->model, launched->of.call, operands.x.num_bytes + operands.out.num_bytes,
                           operands.x_object, operands.out_object, result);
    }
    auto &[of, model] = std::get<Begun<ReadyMessages>>(ready.call);
    renew(of, operands);
    return begin_message(model, of.messages.front(), of.timeout, operands.x_object, result, releases);
}

/// Inside its callers, as a call takes a part of a small message's time.
[[gnu::always_inline]] inline PyObject *run_with(Ready &ready, const Operands &operands) {
    static const Hook interrupted = check_signals;
    // Threads of this process cannot go on without the interpreter.
    const bool is_long = operands.x.num_bytes + operands.out.num_bytes > most_under_lock;
    const bool releases = is_long || ready.communicator.waits_for_threads();
    auto *const collective = std::get_if<ReadyCollective>(&ready.call);
    auto *const messages = std::get_if<ReadyMessages>(&ready.call);
    if (collective != nullptr) renew(*collective, operands);
    else if (messages != nullptr) renew(*messages, operands);
    else return begin(ready, operands, releases);
    Envelope envelope;
    try {
        LockUntilWait lock; // comes back before an exception is caught
        const Hook before_wait = [&lock] { lock.release(); };
        if (releases) lock.release();
        envelope = collective != nullptr ? run(ready.communicator, *collective, interrupted, before_wait)
                                         : run(ready.communicator, *messages, interrupted, before_wait);
    } catch (...) {
        set_python_error(std::current_exception());
        return nullptr;
    }
    PyObject *const array = operands.object_at(ready.result);
    if (!envelope.is_there) return Py_NewRef(array == nullptr ? Py_None : array);
    const nb::object source = nb::steal(PyLong_FromLong(envelope.source)),
                     tag = nb::steal(PyLong_FromUnsignedLongLong(envelope.tag));
    return source.is_valid() && tag.is_valid() ? PyTuple_Pack(3, array, source.ptr(), tag.ptr()) : nullptr;
}

/// Whether it is plain, and then what decides of it: also that it is not x, of which a plan for two arrays knows
/// nothing.
bool add_new(const nb::object &array, Key &key, Operands &operands) {
    operands.out_object = array.ptr();
    if (!add_operand(array.ptr(), key, operands.out)) return false;
    key.add(relation_of(operands.x, operands.out));
    return true;
}

/// With a new array for what comes out.
[[gnu::noinline]] PyObject *run_into_new(Ready &ready, Operands operands) {
    const nb::object made = ready.makes.make(operands.x_object);
    if (!made.is_valid()) return nullptr;
    if (ready.makes.take(made, operands) && ready.fits(operands)) return run_with(ready, operands);
    PyErr_Format(PyExc_TypeError, "expected a new array like that of the previous call, found another %s; pass out=",
                 Py_TYPE(made.ptr())->tp_name);
    return nullptr;
}

} // namespace

Miss::Miss() : outer(current_miss) {
    current_miss = this;
    ++num_misses;
}

Miss::~Miss() {
    current_miss = outer;
    --num_misses;
}

/// Where the next call finds what it returns, or what its work returns; nothing of what its method made otherwise.
std::optional<Place> Miss::find_result(const Operands &operands, nb::handle result) {
    nb::object of_work;
    const auto learn = [&](auto &one) {
        if constexpr (requires { one.model; }) result = of_work = one.model.learn_from(result);
    };
    std::visit(learn, call);
    if (!result.is_valid()) return {};
    const Place place = place_of_result(result, operands);
    if (place == Place::none && !result.is_none()) return {};
    return place;
}

std::unique_ptr<Ready> Miss::come_to(Operands operands, nb::handle result, std::vector<nb::object> held) {
    if (num_calls != 1) return nullptr;
    PyObject *const x_before = operands.x_object, *const out_before = operands.out_object;
    if (made.is_valid()) {
        Key kind;
        if (!add_new(made, kind, operands)) return nullptr;
        makes.kind.assign(kind.words().begin(), kind.words().end());
    }
    const std::optional<Place> place = find_result(operands, result);
    if (!place) return nullptr;
    if (!std::visit([&operands](auto &of) { return find_places(of, operands); }, call)) return nullptr;
    held.push_back(nb::find(*communicator));
    if (const auto *collective = std::get_if<ReadyCollective>(&call)) held.push_back(nb::find(*collective->launched));
    if (const auto *begun = std::get_if<Begun<ReadyCollective>>(&call)) held.push_back(nb::find(*begun->of.launched));
    if (!std::ranges::all_of(held, [](const nb::object &one) { return one.is_valid(); })) return nullptr; // closed
    const std::size_t alignment = std::visit([](const auto &of) { return alignment_needed(of); }, call);
    const auto is_written = [this](PyObject *object) {
        return object != nullptr && std::ranges::find(written, object) != written.end();
    };
    return std::unique_ptr<Ready>(new Ready{*communicator, std::move(call), *place, alignment, std::move(held),
                                            is_written(x_before), is_written(out_before), std::move(makes), x_before,
                                            out_before});
}

void note_written(PyObject *object) {
    for (Miss *miss = current_miss; miss != nullptr; miss = miss->outer) miss->written.push_back(object);
}

void note_made(const nb::object &array, const NewArray &how) {
    if (current_miss == nullptr) return;
    current_miss->made = array;
    current_miss->makes = how;
}

nb::object NewArray::make(PyObject *x) const {
    if (!dtype.is_valid()) return nb::steal(PyObject_CallMethodOneArg(x, by.ptr(), shape.ptr()));
    const std::array given{shape.ptr(), dtype.ptr()};
    return nb::steal(PyObject_Vectorcall(by.ptr(), given.data(), given.size(), nullptr));
}

bool NewArray::take(const nb::object &made, Operands &operands) const {
    Key found;
    return add_new(made, found, operands) && KeyEqual{}(found.words(), kind);
}

PyObject *run(Ready &ready, const Operands &operands, bool (*prepare)(const Ready &, const Operands &)) {
    const Turn turn(ready);
    if (prepare != nullptr && !prepare(ready, operands)) return nullptr;
    return ready.makes.by.is_valid() ? run_into_new(ready, operands) : run_with(ready, operands);
}

} // namespace hocket

using namespace hocket;

namespace {

template <typename Make> void note(Communicator &communicator, const Make &make) {
    for (Miss *miss = current_miss; miss != nullptr; miss = miss->outer) {
        ++miss->num_calls;
        miss->communicator = &communicator;
        miss->call = make();
    }
}

ReadyCollective repeated(const Call &call, Launched &launched) {
    ReadyCollective again{call, &launched, Place::none, Place::none};
    again.call.is_repeated = true;
    return again;
}

} // namespace

void note_call(Communicator &communicator, Launched &launched, const Call &call) {
    note(communicator, [&] { return repeated(call, launched); });
}

void note_submitted(const std::shared_ptr<Communicator> &communicator, Launched &launched, const Call &call) {
    note(*communicator, [&] { return Begun<ReadyCollective>{repeated(call, launched), WorkModel{communicator}}; });
}

void note_messages(Communicator &communicator, const std::vector<Message> &messages, std::chrono::nanoseconds timeout) {
    note(communicator, [&] { return ReadyMessages{messages, {}, timeout}; });
}

void note_begun(const std::shared_ptr<Communicator> &communicator, const Message &message,
                std::chrono::nanoseconds timeout) {
    note(*communicator, [&] { return Begun<ReadyMessages>{{{message}, {}, timeout}, WorkModel{communicator}}; });
}
