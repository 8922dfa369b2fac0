// The module hocket._simulator: what of hocket.network is compiled. Only this file of the folder knows Python.

#include "bindings/python/interpreter_lock.h"
#include "simulator/max_flow.h"
#include "simulator/max_min.h"
#include "simulator/problem.h"
#include "simulator/shortest.h"

#include <algorithm>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket::simulator;

namespace {

template <typename T> using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Amounts = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T> std::span<const T> span_of(const Array<T> &array) { return {array.data(), array.size()}; }

void check(bool good, const char *expected) {
    if (!good) throw nb::value_error((std::string("expected ") + expected).c_str());
}

void check_offsets(std::span<const std::int64_t> offsets, std::size_t end, const char *expected) {
    check(!offsets.empty() && offsets.front() == 0 && offsets.back() == static_cast<std::int64_t>(end) &&
              std::ranges::is_sorted(offsets),
          expected);
}

void check_below(std::span<const std::int64_t> values, std::size_t limit, const char *expected) {
    const auto outside = [limit](std::int64_t value) { return value < 0 || value >= static_cast<std::int64_t>(limit); };
    check(std::ranges::none_of(values, outside), expected);
}

void bind_max_min(nb::module_ &module) {
    module.def(
        "max_min",
        [](const Array<double> &capacity, const Array<std::int64_t> &offsets, const Array<std::int64_t> &links,
           const Array<double> &weights, const Array<double> &penalties, const Result &rates) {
            const Flows flows{span_of(offsets), span_of(links), span_of(weights), span_of(penalties)};
            check_offsets(flows.offsets, flows.links.size(), "max_min: rising offsets from 0 to the number of links");
            check_below(flows.links, capacity.size(), "max_min: links as indices of capacity");
            check(flows.weights.empty() || flows.weights.size() == flows.links.size(),
                  "max_min: a weight for each link of a flow, or none");
            check(flows.penalties.empty() || flows.penalties.size() == flows.size(),
                  "max_min: a penalty for each flow, or none");
            check(rates.size() == flows.size(), "max_min: rates for each flow");
            const WithoutLock release;
            MaxMin().solve(span_of(capacity), flows, {rates.data(), rates.size()});
        },
        "capacity"_a, "offsets"_a, "links"_a, "weights"_a, "penalties"_a, "rates"_a);
}

/// The arrays of a problem, by the names of its members.
struct Arrays {
    nb::dict arrays;

    template <typename T> std::span<const T> get(const char *name) const {
        Array<T> array;
        check(arrays.contains(name) && nb::try_cast(arrays[name], array, false), name);
        return span_of(array);
    }
};

Problem problem_of(const Arrays &arrays) {
    Problem problem;
    problem.pattern_begins = arrays.get<std::int64_t>("pattern_begins");
    problem.source = arrays.get<std::int64_t>("source");
    problem.target = arrays.get<std::int64_t>("target");
    problem.channel = arrays.get<std::int64_t>("channel");
    problem.chunks = arrays.get<double>("chunks");
    problem.eager_bytes = arrays.get<double>("eager_bytes");
    problem.seconds = arrays.get<double>("seconds");
    problem.paths = {
        arrays.get<std::int64_t>("offsets"), arrays.get<std::int64_t>("links"), arrays.get<double>("weights"), {}};
    problem.work_begins = arrays.get<std::int64_t>("work_begins");
    problem.work_actor = arrays.get<std::int64_t>("work_actor");
    problem.work = arrays.get<double>("work");
    problem.repeat_pattern = arrays.get<std::int64_t>("repeat_pattern");
    problem.repeat_times = arrays.get<std::int64_t>("repeat_times");
    problem.repeat_job = arrays.get<std::int64_t>("repeat_job");
    problem.job_pieces = arrays.get<std::int64_t>("job_pieces");
    problem.job_start = arrays.get<double>("job_start");
    problem.piece_bytes = arrays.get<double>("piece_bytes");
    problem.last_piece_bytes = arrays.get<double>("last_piece_bytes");
    problem.actor_job = arrays.get<std::int64_t>("actor_job");
    problem.send_seconds = arrays.get<double>("send_seconds");
    problem.receive_seconds = arrays.get<double>("receive_seconds");
    problem.gap_seconds = arrays.get<double>("gap_seconds");
    problem.bytes_per_second = arrays.get<double>("bytes_per_second");
    problem.link_seconds = arrays.get<double>("link_seconds");
    return problem;
}

void check_problem(const Problem &problem) {
    const std::size_t num_messages = problem.source.size(), num_jobs = problem.job_pieces.size();
    for (const std::size_t size : {problem.target.size(), problem.channel.size(), problem.chunks.size(),
                                   problem.eager_bytes.size(), problem.seconds.size(), problem.paths.size()}) {
        check(size == num_messages,
              "messages of equally many sources, targets, channels, chunks, eager_bytes, seconds and paths");
    }
    check_offsets(problem.pattern_begins, num_messages, "pattern_begins from 0 to the number of messages");
    check_offsets(problem.paths.offsets, problem.paths.links.size(), "offsets from 0 to the number of links of paths");
    check_below(problem.paths.links, problem.num_links(), "links of paths that exist");
    check(problem.paths.weights.empty() || problem.paths.weights.size() == problem.paths.links.size(),
          "a weight for each link of a path, or none");
    check_below(problem.source, problem.num_actors(), "sources that exist");
    check_below(problem.target, problem.num_actors(), "targets that exist");
    check_below(problem.channel, num_messages, "channels below the number of messages");
    check(problem.work_begins.size() == problem.pattern_begins.size(), "work_begins for each pattern");
    check(problem.work_actor.size() == problem.work.size(), "work for each work_actor");
    check_offsets(problem.work_begins, problem.work.size(), "work_begins from 0 to the number of work");
    check_below(problem.work_actor, problem.num_actors(), "actors that exist");
    check(problem.repeat_times.size() == problem.repeat_pattern.size() &&
              problem.repeat_job.size() == problem.repeat_pattern.size(),
          "times and a job for each repeat");
    check_below(problem.repeat_pattern, problem.pattern_begins.size() - 1, "patterns that exist");
    check(std::ranges::all_of(problem.repeat_times, [](std::int64_t times) { return times > 0; }),
          "repeats done once or more");
    check_below(problem.repeat_job, num_jobs, "jobs that exist");
    check_below(problem.actor_job, num_jobs, "jobs that exist");
    for (const std::size_t size :
         {problem.send_seconds.size(), problem.receive_seconds.size(), problem.gap_seconds.size()}) {
        check(size == problem.num_actors(), "send_seconds, receive_seconds and gap_seconds for each actor");
    }
    check(problem.job_start.size() == num_jobs && problem.piece_bytes.size() == num_jobs &&
              problem.last_piece_bytes.size() == num_jobs,
          "a start and piece_bytes for each job");
    check(std::ranges::all_of(problem.job_pieces, [](std::int64_t pieces) { return pieces > 0; }), "a piece or more");
    std::int64_t left = std::numeric_limits<std::int32_t>::max(); // what lanes are numbered by
    for (const std::int64_t job : problem.actor_job) {
        left -= std::min(left + 1, problem.job_pieces[static_cast<std::size_t>(job)]);
        check(left >= 0, "fewer pieces in all than 2^31");
    }
    check(problem.link_seconds.size() == problem.num_links(), "link_seconds for each link");
}

template <typename T> nb::object as_array(std::vector<T> values) {
    auto *owned = new std::vector<T>(std::move(values));
    const nb::capsule owner(owned, [](void *pointer) noexcept { delete static_cast<std::vector<T> *>(pointer); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner));
}

template <typename T> nb::object column(const std::vector<Record> &records, T Record::*member) {
    std::vector<T> values;
    values.reserve(records.size());
    for (const Record &record : records) values.push_back(record.*member);
    return as_array(std::move(values));
}

void bind_events(nb::module_ &module) {
    module.def(
        "run",
        [](const nb::dict &arrays, double packet_bytes, double tick_seconds, bool record) {
            Problem problem = problem_of({arrays});
            check_problem(problem);
            problem.packet_bytes = packet_bytes;
            problem.tick_seconds = tick_seconds;
            Outcome outcome;
            {
                const WithoutLock release;
                outcome = run(problem, record);
            }
            const std::vector<Record> &records = outcome.records;
            const nb::tuple columns = nb::make_tuple(column(records, &Record::message), column(records, &Record::step),
                                                     column(records, &Record::piece), column(records, &Record::started),
                                                     column(records, &Record::sent), column(records, &Record::arrived));
            return nb::make_tuple(as_array(std::move(outcome.finished)), columns);
        },
        "arrays"_a, "packet_bytes"_a, "tick_seconds"_a, "record"_a);
}

void check_links(std::span<const std::int64_t> source, std::span<const std::int64_t> target, std::size_t num_nodes) {
    check(source.size() == target.size(), "as many sources of links as targets");
    check_below(source, num_nodes, "sources of links as numbers of nodes");
    check_below(target, num_nodes, "targets of links as numbers of nodes");
}

void check_capacity(const MaxFlow &flow, std::span<const std::int64_t> capacity) {
    check(capacity.size() == flow.num_links(), "MaxFlow: a capacity for each link");
    check(std::ranges::all_of(capacity, [](std::int64_t each) { return each >= 0; }),
          "MaxFlow: capacities of 0 or more");
}

void bind_max_flow(nb::module_ &module) {
    nb::class_<MaxFlow>(module, "MaxFlow")
        .def(
            "__init__",
            [](MaxFlow *self, std::size_t num_nodes, const Array<std::int64_t> &source,
               const Array<std::int64_t> &target) {
                check_links(span_of(source), span_of(target), num_nodes);
                new (self) MaxFlow(num_nodes, span_of(source), span_of(target));
            },
            "num_nodes"_a, "source"_a, "target"_a)
        .def(
            "run",
            [](MaxFlow &self, const Array<std::int64_t> &capacity, std::size_t from, std::size_t to) {
                check_capacity(self, span_of(capacity));
                check(from < self.num_nodes() && to < self.num_nodes() && from != to,
                      "MaxFlow.run: two different nodes");
                const WithoutLock release;
                return self.run(span_of(capacity), from, to);
            },
            "capacity"_a, "source"_a, "target"_a)
        .def(
            "find_short",
            [](MaxFlow &self, const Array<std::int64_t> &capacity, std::size_t from, const Array<std::int64_t> &targets,
               std::int64_t enough) {
                check_capacity(self, span_of(capacity));
                check(from < self.num_nodes(), "MaxFlow.find_short: a source that exists");
                check_below(span_of(targets), self.num_nodes(), "MaxFlow.find_short: targets as numbers of nodes");
                check(std::ranges::find(span_of(targets), static_cast<std::int64_t>(from)) == span_of(targets).end(),
                      "MaxFlow.find_short: targets other than the source");
                const WithoutLock release;
                return self.find_short(span_of(capacity), from, span_of(targets), enough);
            },
            "capacity"_a, "source"_a, "targets"_a, "enough"_a)
        .def(
            "write_flows",
            [](const MaxFlow &self, const Amounts &flows) {
                check(flows.size() == self.num_links(), "MaxFlow.write_flows: a place for each link");
                for (std::size_t link = 0; link < flows.size(); ++link) flows.data()[link] = self.flow_of(link);
            },
            "flows"_a)
        .def(
            "mark_before_cut",
            [](const MaxFlow &self, const Mask &mask) {
                check(mask.size() == self.num_nodes(), "MaxFlow.mark_before_cut: a place for each node");
                for (std::size_t node = 0; node < mask.size(); ++node) mask.data()[node] = self.before_cut(node);
            },
            "mask"_a);
}

void bind_shortest(nb::module_ &module) {
    module.def(
        "shortest_seconds",
        [](const Array<std::int64_t> &source, const Array<std::int64_t> &target, const Array<double> &weights,
           std::size_t start, const Result &best) {
            check_links(span_of(source), span_of(target), best.size());
            check(weights.size() == source.size(), "shortest_seconds: a weight for each link");
            check(start < best.size(), "shortest_seconds: a node to start from");
            const WithoutLock release;
            shortest_seconds(span_of(source), span_of(target), span_of(weights), start, {best.data(), best.size()});
        },
        "source"_a, "target"_a, "weights"_a, "start"_a, "best"_a);
    nb::class_<Router>(module, "Router")
        .def(
            "__init__",
            [](Router *self, const Array<std::int64_t> &source, const Array<std::int64_t> &target,
               const Array<std::int64_t> &hops, const Array<bool> &forwards) {
                check_links(span_of(source), span_of(target), forwards.size());
                check(hops.size() == source.size() &&
                          std::ranges::all_of(span_of(hops), [](std::int64_t each) { return each > 0; }),
                      "Router: hops of 1 or more for each link");
                new (self) Router(span_of(source), span_of(target), span_of(hops), span_of(forwards));
            },
            "source"_a, "target"_a, "hops"_a, "forwards"_a)
        .def(
            "route",
            [](Router &self, const Array<std::int64_t> &from, const Array<std::int64_t> &to,
               const Array<std::int64_t> &keys) {
                check(from.size() == to.size() && from.size() == keys.size(),
                      "Router.route: as many sources as targets and keys");
                check_below(span_of(from), self.num_nodes(), "Router.route: sources as numbers of nodes");
                check_below(span_of(to), self.num_nodes(), "Router.route: targets as numbers of nodes");
                std::vector<std::int64_t> nodes, ends(from.size());
                {
                    const WithoutLock release;
                    self.route(span_of(from), span_of(to), span_of(keys), nodes, ends);
                }
                return nb::make_tuple(as_array(std::move(nodes)), as_array(std::move(ends)));
            },
            "source"_a, "target"_a, "keys"_a);
}

} // namespace

NB_MODULE(_simulator, module) {
    bind_max_min(module);
    bind_events(module);
    bind_max_flow(module);
    bind_shortest(module);
}
