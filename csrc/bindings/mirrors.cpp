// For the leader of a host: news of its ranks, and what it hears of others.
#include "bindings/mirrors.h"

#include "mirrors/mirrors.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

nb::bytes copied(Bytes bytes) { return nb::bytes(bytes.data(), bytes.size()); }

Bytes bytes_of(const nb::bytes &given) { return Bytes(static_cast<const std::byte *>(given.data()), given.size()); }

} // namespace

void bind_mirrors(nb::module_ &module) {
    nb::class_<Mirrors>(module, "Mirrors")
        .def(
            "__init__",
            [](Mirrors *self, const std::vector<std::size_t> &capacities) { new (self) Mirrors(capacities); },
            "capacities"_a, "By rank: the size of the arena of a rank on another host, 0 of one here.")
        .def("descriptor", &Mirrors::descriptor, "rank"_a)
        .def_prop_ro("bell", &Mirrors::bell)
        .def("join", &Mirrors::join, "context"_a)
        .def(
            "collect", [](Mirrors &self, bool thorough) { return copied(self.collect(thorough)); }, "thorough"_a)
        .def("forget_told", &Mirrors::forget_told)
        .def(
            "apply", [](Mirrors &self, const nb::bytes &news, bool wakes) { self.apply(bytes_of(news), wakes); },
            "news"_a, "wakes"_a)
        .def("proposals",
             [](Mirrors &self) {
                 nb::list found;
                 for (const auto &reason : self.proposals()) found.append(copied(reason));
                 return found;
             })
        .def(
            "communicator_of",
            [](const Mirrors &, const nb::bytes &reason) { return communicator_of(bytes_of(reason)).value_or(0); },
            "reason"_a, "0 if it is malformed.")
        .def(
            "decide", [](Mirrors &self, const nb::bytes &reason) { self.decide(bytes_of(reason)); }, "reason"_a)
        .def("deaths", &Mirrors::deaths)
        .def("num_present", &Mirrors::num_present);
}
