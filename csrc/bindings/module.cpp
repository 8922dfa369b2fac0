// The module hocket._core. Only this folder knows Python. Every blocking call releases the interpreter lock.

#include "bindings/calls/cached_calls.h"
#include "bindings/calls/group_calls.h"
#include "bindings/calls/point_to_point.h"
#include "bindings/calls/streams.h"
#include "bindings/calls/works.h"
#include "bindings/machine.h"
#include "bindings/memory.h"
#include "bindings/mirrors.h"
#include "bindings/python/arrays.h"
#include "bindings/python/blocking.h"
#include "bindings/python/site.h"
#include "bindings/reductions.h"
#include "bindings/routes.h"
#include "bindings/traces.h"
#include "bindings/transports.h"
#include "communicator/communicator.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>
#include <utility>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

// Errors --------------------------------------------------------------------------------------------------------------

Raised::Raised(const nb::python_error &error)
    : value_(nb::borrow(error.value()).release().ptr(),
             [](PyObject *value) {
                 if (Py_IsInitialized() == 0) return; // then nothing is freed any more
                 const WithLock acquire;
                 Py_DECREF(value);
             }),
      text_(nb::cast<std::string>(error.type().attr("__name__")) + ": " + nb::str(error.value()).c_str()) {}

/// What ranks write of themselves may be cut inside a character, or be anything.
static nb::object text_of(const std::string &text) {
    return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

static nb::object exception_of(const Failure &failure) {
    nb::dict calls;
    for (const auto &[rank, call] : failure.calls) {
        calls[nb::int_(rank)] =
            nb::make_tuple(call.kind, call.dtype, call.op, call.detail, call.count, call.root, call.schedule);
    }
    nb::dict sites;
    for (const auto &[rank, site] : failure.sites) sites[nb::int_(rank)] = text_of(site);
    nb::dict hosts;
    for (const auto &[rank, host] : failure.hosts) hosts[nb::int_(rank)] = text_of(host);
    const CallOfPython call;
    return nb::module_::import_("hocket.runtime")
        .attr("exception_of")(static_cast<int>(failure.cause), failure.rank, failure.sequence, failure.seconds,
                              failure.error_number, failure.missing, calls, sites, text_of(failure.text), failure.self,
                              failure.label, hosts);
}

static void translate(const std::exception_ptr &pointer, void *) {
    try {
        std::rethrow_exception(pointer);
    } catch (const Raised &raised) {
        PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(raised.value().ptr())), raised.value().ptr());
    } catch (const Failure &failure) {
        try {
            const nb::object exception = exception_of(failure);
            PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(exception.ptr())), exception.ptr());
        } catch (nb::python_error &error) {
            error.restore(); // a signal that came meanwhile, for example: KeyboardInterrupt goes before
        }
    }
}

void set_python_error(const std::exception_ptr &pointer) {
    try {
        translate(pointer, nullptr);
    } catch (nb::python_error &error) { error.restore(); } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
    } catch (const std::exception &error) { PyErr_SetString(PyExc_RuntimeError, error.what()); }
}

nb::object exception_of(const std::exception_ptr &failure) {
    if (!failure) return nb::none();
    set_python_error(failure);
    const nb::python_error error;
    return nb::borrow(error.value());
}

/// Between slices of a wait: lets Python run its signal handlers, whose exceptions end the wait.
void check_signals() {
    const WithLock acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

/// The process ends with 1 where it would end with 0. All that Python does at its end has been done by then.
static void fail_at_exit() {
    static std::atomic<pid_t> failing{0}; // a forked child has not failed
    if (failing.exchange(getpid()) == getpid()) return;
    on_exit(
        [](int status, void *) {
            if (status == 0 && failing.load() == getpid()) std::exit(1); // glibc goes on to what is registered before
        },
        nullptr);
}

// Calls ---------------------------------------------------------------------------------------------------------------

std::chrono::nanoseconds duration(double seconds) {
    constexpr double longest = 1e9;
    return std::chrono::nanoseconds(static_cast<std::int64_t>(std::clamp(seconds, 0.0, longest) * 1e9));
}

namespace {

/// A user's own reduction, which remembers what its function raised.
class Custom {
  public:
    Custom(nb::object function, Dtype dtype) : in_python_(custom_fold(std::move(function), dtype)) {
        fold_ = [this](std::byte *destination, std::span<const std::byte *const> sources, std::size_t num_elements) {
            try {
                in_python_(destination, sources, num_elements);
            } catch (nb::python_error &error) {
                const WithLock acquire;
                Failure failure;
                failure.cause = Cause::aborted;
                failure.text = "its op raised " + nb::cast<std::string>(error.type().attr("__name__")) + ": " +
                               nb::cast<std::string>(nb::str(error.value()));
                error_ = nb::borrow(error.value());
                throw failure;
            }
        };
    }
    Custom(const Custom &) = delete;
    Custom &operator=(const Custom &) = delete;
    ~Custom() { // wherever a call ends, what was raised is Python's
        if (!error_.is_valid()) return;
        const WithLock acquire;
        error_.reset();
    }

    const CustomFold *fold() const { return &fold_; }
    /// What the function raised, if it did.
    nb::object error() const { return error_; }

  private:
    CustomFold in_python_, fold_;
    nb::object error_;
};

/// What few calls have beside the rest: a reduction with parameters, blocks of different lengths.
struct Extra {
    std::uint64_t detail;
    Factor factor;
    std::shared_ptr<Custom> custom;
    std::vector<std::uint64_t> input_counts, output_counts;
};

/// The call keeps `extra` alive.
void add_extra(Launch &launch, const Extra &extra) {
    launch.factor = extra.factor;
    launch.custom = extra.custom ? extra.custom->fold() : nullptr;
    launch.input_counts = extra.input_counts;
    launch.output_counts = extra.output_counts;
}

Call make_call(Launched &launched, int kind, int dtype, int op, int root, std::size_t block, std::uintptr_t input,
               std::uintptr_t output, double timeout, std::shared_ptr<Extra> extra) {
    ++launched.num_calls;
    Call call;
    call.plan = launched.plan;
    call.fingerprint.count = block;
    call.fingerprint.schedule = launched.schedule;
    call.fingerprint.kind = kind;
    call.fingerprint.dtype = dtype;
    call.fingerprint.op = op;
    call.fingerprint.root = root;
    call.launch.dtype = static_cast<Dtype>(dtype);
    call.launch.op = static_cast<Op>(op);
    call.launch.block = block;
    call.launch.input = reinterpret_cast<const std::byte *>(input);
    call.launch.output = reinterpret_cast<std::byte *>(output);
    call.timeout = duration(timeout);
    if (extra) {
        call.fingerprint.detail = extra->detail;
        add_extra(call.launch, *extra);
        call.keep = std::move(extra);
    }
    return call;
}

/// A user's function may do anything; what a premul_sum multiplies by is in no key.
bool is_plain(const Call &call, const std::shared_ptr<Extra> &extra) {
    return !extra || (!extra->custom && call.fingerprint.op != static_cast<int>(Op::premul_sum));
}

/// Where a user's own reduction raised, the caller sees just that.
void run(Communicator &self, Launched &launched, int kind, int dtype, int op, int root, std::size_t block,
         std::uintptr_t input, std::uintptr_t output, double timeout, std::shared_ptr<Extra> extra) {
    Call call = make_call(launched, kind, dtype, op, root, block, input, output, timeout, extra);
    call.site = call_site();
    if (is_plain(call, extra)) note_call(self, launched, call);
    try {
        const WithoutLock release;
        self.run(call, check_signals);
    } catch (const Failure &) {
        const nb::object raised = extra && extra->custom ? extra->custom->error() : nb::object();
        if (!raised.is_valid()) throw;
        PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(raised.ptr())), raised.ptr());
        throw nb::python_error();
    }
}

/// `work`: a WorkFields, where the core's handle is found from before anything can interrupt what follows.
void submit(const std::shared_ptr<Communicator> &self, Launched &launched, int kind, int dtype, int op, int root,
            std::size_t block, std::uintptr_t input, std::uintptr_t output, double timeout,
            std::shared_ptr<Extra> extra, std::shared_ptr<Mark> after, nb::handle work) {
    Call call = make_call(launched, kind, dtype, op, root, block, input, output, timeout, extra);
    call.site = call_site();
    if (!after && is_plain(call, extra)) note_submitted(self, launched, call);
    WorkFields *const fields = work_of(work.ptr());
    if (fields == nullptr) throw nb::type_error("submit: expected a Work");
    submit_work(*self, std::make_shared<Work>(std::move(call)), std::move(after), *fields);
}

using Table = nb::ndarray<const std::int32_t, nb::c_contig, nb::device::cpu>;

std::span<const std::int32_t> span_of(const Table &table) { return {table.data(), table.size()}; }

bool is_python_ending() {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsInitialized() == 0 || Py_IsFinalizing() != 0;
#else
    return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0;
#endif
}

/// PyTorch and nanobind, too, have scopes without exceptions below which Python may end a thread. Such a thread sleeps,
/// as in interpreter_lock.h and from Python 3.14 on; else it would abort the process, whose exit code would be lost.
/// While Python ends, this also hides aborts of other threads for other reasons.
void keep_exit_code() {
    static std::terminate_handler before = nullptr;
    if (static bool is_set = false; std::exchange(is_set, true)) return; // a module may be loaded again
    before = std::set_terminate([] {
        if (is_python_ending() && gettid() != getpid()) sleep_until_process_ends();
        if (before != nullptr) before();
    });
}

} // namespace

NB_MODULE(_core, m) {
    m.doc() = "Hocket's core: plans, shared memory, reductions, waiting. Used by hocket.runtime only.";
    nb::register_exception_translator(translate);
    // A forked child leaves what is its parent's alone, on purpose. At exit, a forked child or a thread that goes on
    // may hold objects; no user can act upon a list of them.
    nb::set_leak_warnings(false);
    keep_exit_code();

    m.def("describe", &describe, "array"_a.none(), "writable"_a, "name"_a);
    bind_reductions(m);
    bind_traces(m);
    bind_machine(m);
    bind_routes(m);
    m.attr("LAYOUT") = Endpoint::layout();

    nb::class_<Plan>(m, "Plan").def(
        "__init__",
        [](Plan *self, int num_ranks, int rank, int chunks_per_block, bool uneven, const Table &input_blocks,
           const Table &output_blocks, int num_scratch, bool only_copies, bool only_token, bool hears_all,
           std::string label, const Table &instructions, const Table &sources, const Table &destinations,
           const Table &dependencies) {
            const auto list = [](const Table &table) {
                const auto span = span_of(table);
                return std::vector<std::int32_t>(span.begin(), span.end());
            };
            PlanShape shape{num_ranks,           rank,        chunks_per_block, uneven,     list(input_blocks),
                            list(output_blocks), num_scratch, only_copies,      only_token, hears_all};
            new (self) Plan(std::move(shape), std::move(label), span_of(instructions), span_of(sources),
                            span_of(destinations), span_of(dependencies));
        },
        "num_ranks"_a, "rank"_a, "chunks_per_block"_a, "uneven"_a, "input_blocks"_a, "output_blocks"_a, "num_scratch"_a,
        "only_copies"_a, "only_token"_a, "hears_all"_a, "label"_a, "instructions"_a, "sources"_a, "destinations"_a,
        "dependencies"_a);

    nb::class_<Extra>(m, "Extra")
        .def(
            "__init__",
            [](Extra *self, std::uint64_t detail, const std::tuple<double, double, std::uint64_t> &factor,
               nb::object function, int dtype, std::vector<std::uint64_t> input_counts,
               std::vector<std::uint64_t> output_counts) {
                std::shared_ptr<Custom> custom;
                if (!function.is_none()) {
                    custom = std::make_shared<Custom>(std::move(function), static_cast<Dtype>(dtype));
                }
                const auto &[real, imaginary, integer] = factor;
                new (self) Extra{detail, Factor{real, imaginary, integer}, std::move(custom), std::move(input_counts),
                                 std::move(output_counts)};
            },
            "detail"_a = 0, "factor"_a = std::make_tuple(1.0, 0.0, std::uint64_t{1}), "function"_a = nb::none(),
            "dtype"_a = 0, "input_counts"_a = std::vector<std::uint64_t>(),
            "output_counts"_a = std::vector<std::uint64_t>());

    bind_transports(m);

    // One step of the machine at a time: the driver of tests that choose the order in which ranks move.
    nb::class_<Executor>(m, "Executor")
        .def(nb::init<const Plan &, Transport &>(), "plan"_a, "transport"_a, nb::keep_alive<1, 2>(),
             nb::keep_alive<1, 3>())
        .def(
            "start",
            [](Executor &self, int dtype, int op, std::size_t block, std::uintptr_t input, std::uintptr_t output,
               std::uint32_t tag, const Extra *extra) {
                Launch launch;
                launch.dtype = static_cast<Dtype>(dtype);
                launch.op = static_cast<Op>(op);
                launch.block = block;
                launch.input = reinterpret_cast<const std::byte *>(input);
                launch.output = reinterpret_cast<std::byte *>(output);
                launch.tag = tag;
                if (extra != nullptr) add_extra(launch, *extra);
                self.start(launch);
            },
            "dtype"_a, "op"_a, "block"_a, "input"_a, "output"_a, "tag"_a, "extra"_a.none() = nb::none(),
            nb::keep_alive<1, 8>())
        .def("advance", &Executor::advance)
        .def("num_moves", &Executor::num_moves)
        .def("waiting_for", &Executor::waiting_for);

    m.def("fail_at_exit", &fail_at_exit);
    bind_memory(m);
    nb::class_<Context>(m, "Context")
        .def(
            "__init__",
            [](Context *self, std::shared_ptr<Arena> arena, std::shared_ptr<Recorder> recorder, bool may_attach,
               std::optional<std::pair<double, double>> link) {
                auto paced = link ? std::make_unique<Link>(link->first, duration(link->second)) : nullptr;
                new (self)
                    Context(std::move(arena), Context::most_slots, may_attach, std::move(recorder), std::move(paced));
            },
            "arena"_a, "recorder"_a, "may_attach"_a = false, "link"_a.none() = nb::none())
        .def_prop_ro("presence_offset", &Context::presence_offset)
        .def(
            "add_endpoint",
            [](Context &self, int num_members) {
                return self.add_endpoint(Endpoint::committed_bytes(num_members), Endpoint::reserved_bytes(num_members));
            },
            "num_members"_a)
        .def("abandon_endpoint", &Context::abandon_endpoint, "offset"_a)
        .def("generation_of", &Context::generation_of, "offset"_a)
        .def("report_death", &Context::report_death, "rank"_a, "is_cut_off"_a)
        .def(
            "join",
            [](Context &self, int rank, const std::vector<int> &descriptors, const std::vector<std::size_t> &offsets,
               const Profile &profile, const std::vector<int> &neighbours, const std::vector<int> &beside,
               const std::vector<int> &far, const std::vector<int> &elsewhere, int leader_bell,
               const std::vector<std::string> &hosts) {
                self.join(rank, descriptors, offsets, profile, neighbours, beside, far, elsewhere, leader_bell, hosts);
            },
            "rank"_a, "descriptors"_a, "presence_offsets"_a, "profile"_a, "neighbours"_a, "beside"_a, "far"_a,
            "elsewhere"_a = std::vector<int>(), "leader_bell"_a = -1, "hosts"_a = std::vector<std::string>());
    bind_mirrors(m);

    bind_streams(m);
    nb::class_<Work>(m, "Work")
        .def_prop_ro("sequence", &Work::sequence)
        // As of the mark of its end, which is made an object of its own where a stream asks for it.
        .def("is_passed", [](const Work &self) { return self.end().is_passed(); })
        .def("exception", [](const Work &self) { return exception_of(self.end().tell_failure()); })
        .def("on_host", &Work::shared_end);

    nb::class_<Communicator> communicator(m, "Communicator");
    communicator
        .def(
            "__init__",
            [](Communicator *self, std::shared_ptr<Context> context, std::vector<int> members, int rank,
               const std::vector<std::size_t> &offsets, bool spin, std::shared_ptr<Connections> connections,
               const std::vector<std::uint32_t> &generations) {
                new (self) Communicator(std::move(context), std::move(members), rank, offsets, spin,
                                        std::move(connections), generations);
            },
            "context"_a, "members"_a, "rank"_a, "offsets"_a, "spin"_a, "connections"_a = nb::none(),
            "generations"_a = std::vector<std::uint32_t>())
        .def("run", &run, "launched"_a, "kind"_a, "dtype"_a, "op"_a, "root"_a, "block"_a, "input"_a, "output"_a,
             "timeout"_a, "extra"_a.none())
        .def("submit", &submit, "launched"_a, "kind"_a, "dtype"_a, "op"_a, "root"_a, "block"_a, "input"_a, "output"_a,
             "timeout"_a, "extra"_a.none(), "after"_a.none(), "work"_a)
        .def("wait", &wait_for_work, "work"_a, "seconds"_a)
        .def("ranks_behind", &Communicator::ranks_behind, "sequence"_a)
        .def("note_progress", &Communicator::note_progress, "word"_a)
        .def("progress", &Communicator::progress)
        .def("closed", &Communicator::closed)
        .def("abort", &Communicator::abort, nb::call_guard<WithoutLock>(), "reason"_a, "only_later"_a = false)
        .def("finish",
             [](Communicator &self) {
                 const WithoutLock release;
                 self.finish(check_signals);
             })
        .def("check_not_on_stream", &Communicator::check_not_on_stream)
        .def("close",
             [](Communicator &self) {
                 const WithoutLock release;
                 self.close(check_signals);
             })
        .def_prop_ro("busy_seconds",
                     [](const Communicator &self) { return std::chrono::duration<double>(self.busy_time()).count(); })
        .def_prop_ro("transport", &Communicator::carrier, nb::rv_policy::reference_internal);
    bind_cached_calls(m);
    bind_works(m);
    bind_group_calls(m);
    bind_point_to_point(m, communicator);

    m.def("fork_generation", &fork_generation);
    m.def(
        "enter_own_thread", [] { enter_own_thread(); },
        "Of each thread of Hocket, first: signals are the program's threads', and communicators are closed in others.");
    m.def(
        "is_own_thread", [] { return is_own_thread; },
        "Whether this thread is the core's: it must not wait for a call.");
}
