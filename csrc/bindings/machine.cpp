#include "bindings/machine.h"

#include "bindings/python/blocking.h"
#include "kernels/rates.h"
#include "machine/cores.h"
#include "machine/profile.h"

#include <algorithm>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <string_view>
#include <system_error>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

constexpr int most_cores = 1024; // of a cpu_set_t

/// Raises what a core refuses as an OSError.
template <typename Measure> double measured(const Measure &measure) {
    try {
        const WithoutLock release;
        return measure();
    } catch (const std::system_error &error) {
        PyErr_SetObject(PyExc_OSError, nb::make_tuple(error.code().value(), error.what()).ptr());
        throw nb::python_error();
    }
}

void check_cores(const std::vector<int> &cores) {
    if (cores.empty() || std::ranges::any_of(cores, [](int core) { return core < 0 || core >= most_cores; }))
        throw nb::value_error("expected cores as numbers from 0 to 1023");
}

} // namespace

void bind_machine(nb::module_ &module) {
    nb::list names;
    for (const char *name : pass_names) names.append(name);
    module.attr("PASSES") = nb::tuple(names);
    const auto name_of = [](std::string_view name) { return nb::str(name.data(), name.size()); };
    nb::list profiles;
    for (const std::string_view name : profile_names()) profiles.append(name_of(name));
    module.attr("PROFILES") = nb::tuple(profiles);
    module.attr("OWN_PROFILE") = name_of(own_profile());
    nb::class_<Profile> profile(module, "Profile");
    profile.attr("NEVER") = nb::int_(Profile::never);
    profile
        .def(
            "__init__",
            [](Profile *self, std::size_t own_cache, std::size_t all_caches, std::size_t fetch_huge,
               std::size_t fetch_small, std::size_t halve, bool shares_cores) {
                new (self) Profile{own_cache, all_caches, fetch_huge, fetch_small, halve, shares_cores};
            },
            "own_cache"_a, "all_caches"_a, "fetch_huge"_a, "fetch_small"_a, "halve"_a, "shares_cores"_a)
        .def_ro("own_cache", &Profile::own_cache)
        .def_ro("all_caches", &Profile::all_caches)
        .def_ro("fetch_huge", &Profile::fetch_huge)
        .def_ro("fetch_small", &Profile::fetch_small)
        .def_ro("halve", &Profile::halve);
    module.def(
        "profile_of",
        [](std::string_view name, bool shares_cores, std::optional<std::size_t> own_cache) {
            const auto found = profile_of(name, shares_cores, own_cache.value_or(bytes_of_own_cache()));
            if (!found) throw nb::value_error("profile_of: expected one of PROFILES");
            return *found;
        },
        "name"_a, "shares_cores"_a, "own_cache"_a = nb::none());
    module.def(
        "bytes_per_second",
        [](std::string_view name, std::size_t footprint, const std::vector<int> &cores, double seconds) {
            const auto *found = std::ranges::find(pass_names, name);
            if (found == pass_names.end()) throw nb::value_error("bytes_per_second: expected one of PASSES");
            if (footprint < page_bytes()) throw nb::value_error("bytes_per_second: expected a page of memory or more");
            check_cores(cores);
            const auto pass = static_cast<Pass>(found - pass_names.begin());
            return measured([&] { return bytes_per_second(pass, footprint, cores, duration(seconds)); });
        },
        "name"_a, "footprint"_a, "cores"_a, "seconds"_a);
    module.def(
        "hop_seconds",
        [](int first_core, int second_core, double seconds) {
            check_cores({first_core, second_core});
            if (first_core == second_core) throw nb::value_error("hop_seconds: expected two cores");
            return measured([&] { return hop_seconds(first_core, second_core, duration(seconds)); });
        },
        "first_core"_a, "second_core"_a, "seconds"_a);
}
