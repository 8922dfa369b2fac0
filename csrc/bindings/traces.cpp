#include "bindings/traces.h"

#include "bindings/python/blocking.h"
#include "route/route.h"
#include "trace/trace.h"

#include <cstddef>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <tuple>
#include <utility>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

/// (name, NumPy's format, offset) of each field of a record.
using Field = std::tuple<const char *, const char *, std::size_t>;

const std::vector<Field> fields{
    {"what", "u1", offsetof(Record, what)},
    {"dtype", "u1", offsetof(Record, dtype)},
    {"op", "u1", offsetof(Record, op)},
    {"flags", "u1", offsetof(Record, flags)},
    {"lane", "u4", offsetof(Record, lane)},
    {"name", "u4", offsetof(Record, name)},
    {"launcher", "u4", offsetof(Record, launcher)},
    {"begin", "i8", offsetof(Record, begin)},
    {"end", "i8", offsetof(Record, end)},
    {"launched", "i8", offsetof(Record, launched)},
    {"sequence", "u8", offsetof(Record, sequence)},
    {"input", "u8", offsetof(Record, input)},
    {"output", "u8", offsetof(Record, output)},
    {"peer", "i4", offsetof(Record, peer)},
    {"step", "i4", offsetof(Record, step)},
    {"order", "i4", offsetof(Record, order)},
    {"instruction", "i4", offsetof(Record, instruction)},
};

/// By number, of moves that send.
const std::vector<std::string> ways(way_names.begin(), way_names.end());

/// (records as bytes, lanes as (kind, name, id, ranks), names, whether it ended early).
nb::tuple take(Recorder &self) {
    Recorder::Taken taken;
    {
        const WithoutLock release;
        taken = self.take();
    }
    nb::list lanes;
    for (const TraceLane &lane : taken.lanes)
        lanes.append(nb::make_tuple(static_cast<int>(lane.kind), lane.name, lane.id, lane.ranks));
    auto *records = new std::vector<Record>(std::move(taken.records));
    const nb::capsule owner(records,
                            [](void *pointer) noexcept { delete static_cast<std::vector<Record> *>(pointer); });
    const std::size_t num_bytes = records->size() * sizeof(Record);
    auto *bytes = reinterpret_cast<std::uint8_t *>(records->data());
    return nb::make_tuple(nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(bytes, {num_bytes}, owner), lanes,
                          taken.names, taken.overflowed);
}

} // namespace

void bind_traces(nb::module_ &module) {
    nb::class_<Recorder>(module, "Recorder")
        .def("__init__", [](Recorder *self) { new (self) Recorder(); })
        .def_ro_static("fields", &fields)
        .def_ro_static("ways", &ways)
        .def_prop_ro_static("record_bytes", [](nb::handle) { return sizeof(Record); })
        .def_prop_ro("is_on", &Recorder::is_on)
        .def("start", &Recorder::start, nb::call_guard<WithoutLock>(), "steps"_a)
        .def("take", &take)
        .def_static("now", &ticks, "Returns the time on the clock of spans.")
        .def(
            "span",
            [](Recorder &self, std::string_view name, std::uint64_t begin) {
                if (self.is_on()) self.span(self.lane_of_this_thread(), self.name(name), begin, ticks());
            },
            "name"_a, "begin"_a, "Records a span of this thread that began at `begin` and ends now.")
        .def(
            "wait",
            [](Recorder &self, std::string_view name, std::uint64_t begin, std::uint64_t event) {
                if (self.is_on()) self.wait(self.lane_of_this_thread(), self.name(name), begin, event);
            },
            "name"_a, "begin"_a, "event"_a, "Records that this thread has waited for an event or, with 0, a stream.")
        .def(
            "instant",
            [](Recorder &self, std::string_view name, std::uint64_t event) {
                self.instant(self.lane_of_this_thread(), name, event);
            },
            "name"_a, "event"_a, "Records what this thread does to an event now.");
}
