// What a route is chosen from and what a plan's sends are told, for the table of routes and for `hocket explain
// --ways`.
#include "bindings/routes.h"

#include "executor/executor.h"
#include "route/route.h"
#include "transport/shm/shm.h"

#include <nanobind/stl/string_view.h>
#include <string_view>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

/// Reaches its peers as it is told, and carries nothing. Memory below `end` is made up, and of the kind that it is
/// told.
class Described final : public Transport {
  public:
    static constexpr std::uintptr_t input = std::uintptr_t{1} << 40, output = std::uintptr_t{1} << 42,
                                    end = std::uintptr_t{1} << 44;

    Described(const Reach &reach, MemoryKind memory) : reach_(reach), memory_(memory) {}

    Reach reach(std::span<const int>) const override { return reach_; }
    MemoryKind memory_of(Bytes bytes, std::span<const int>, bool) override {
        return reinterpret_cast<std::uintptr_t>(bytes.data()) < end ? memory_ : MemoryKind::small_pages;
    }
    Taken post(std::span<const int>, Bytes, std::uint32_t, const Manner &) override { return {}; }
    std::uint64_t posted(int) const override { return 0; }
    std::uint64_t released(int) const override { return 0; }
    View view(int) const override { return {}; }
    void release(int, std::size_t) override {}
    void tell(int, std::uint64_t) override {}
    std::uint64_t told(int) const override { return 0; }

  private:
    Reach reach_;
    MemoryKind memory_;
};

std::string_view name_of(Way way) { return way_names[static_cast<std::size_t>(way)]; }

nb::tuple described(const Route &route) {
    return nb::make_tuple(name_of(route.way), name_of(route.otherwise), route.whole, route.past_caches);
}

} // namespace

void bind_routes(nb::module_ &module) {
    module.attr("LINE_BYTES") = ShmTransport::most_bytes_in_lines;
    nb::enum_<MemoryKind>(module, "MemoryKind")
        .value("registered", MemoryKind::registered)
        .value("same_process", MemoryKind::same_process)
        .value("huge_pages", MemoryKind::huge_pages)
        .value("small_pages", MemoryKind::small_pages)
        .value("unknown_pages", MemoryKind::unknown_pages);
    nb::class_<Reach>(module, "Reach")
        .def(
            "__init__",
            [](Reach *self, bool is_stream, bool may_put, bool may_fetch, bool is_far, std::size_t line_bytes) {
                new (self) Reach{.is_stream = is_stream,
                                 .may_put = may_put,
                                 .may_fetch = may_fetch,
                                 .is_far = is_far,
                                 .line_bytes = line_bytes};
            },
            nb::kw_only(), "is_stream"_a = false, "may_put"_a = true, "may_fetch"_a = true, "is_far"_a = false,
            "line_bytes"_a = ShmTransport::most_bytes_in_lines)
        .def_ro("is_stream", &Reach::is_stream)
        .def_ro("may_put", &Reach::may_put)
        .def_ro("may_fetch", &Reach::may_fetch)
        .def_ro("head_bytes", &Reach::head_bytes)
        .def_ro("whole_pieces", &Reach::whole_pieces)
        .def_ro("via", &Reach::via);
    module.def(
        "choose",
        [](std::size_t num_bytes, std::size_t here, std::size_t of_all_ranks, int num_readers, MemoryKind source,
           bool is_fresh, bool comes_back, bool only_copied, bool one_way, bool overwritten, bool may_be_given,
           const Reach &reach, const Profile &profile) {
            return described(choose({num_bytes, here, of_all_ranks, num_readers, source, is_fresh, comes_back,
                                     only_copied, one_way, overwritten, may_be_given},
                                    reach, profile));
        },
        nb::kw_only(), "num_bytes"_a, "here"_a, "of_all_ranks"_a, "num_readers"_a = 1, "source"_a, "is_fresh"_a = false,
        "comes_back"_a = false, "only_copied"_a = false, "one_way"_a = false, "overwritten"_a = false,
        "may_be_given"_a = true, "reach"_a, "profile"_a);
    // For each send of a plan with even blocks: its step, its readers, its bytes and its route.
    module.def(
        "routes",
        [](const Plan &plan, bool in_place, int dtype, std::size_t block, MemoryKind memory, const Reach &reach,
           const Profile &profile) {
            Described transport(reach, memory);
            Executor executor(plan, transport, profile);
            const std::vector<std::uint64_t> in(plan.shape().input_blocks.size(), block),
                out(plan.shape().output_blocks.size(), block);
            executor.start(
                {.dtype = static_cast<Dtype>(dtype),
                 .block = block,
                 .input = reinterpret_cast<const std::byte *>(in_place ? Described::output : Described::input),
                 .output = reinterpret_cast<std::byte *>(Described::output),
                 .input_counts = in,
                 .output_counts = out});
            nb::list rows;
            for (std::size_t i = 0; i < plan.instructions().size(); ++i) {
                const Instruction &one = plan.instructions()[i];
                if (!one.sends()) continue;
                nb::list readers;
                for (const Operand &to : one.destinations) readers.append(to.peer);
                rows.append(nb::make_tuple(one.step, nb::tuple(readers), executor.num_bytes_of(i),
                                           described(executor.route(i))));
            }
            return rows;
        },
        "plan"_a, "in_place"_a, "dtype"_a, "block"_a, "memory"_a, "reach"_a, "profile"_a);
}
