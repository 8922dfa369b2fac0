#include "simulator/network.h"
#include "simulator/problem.h"
#include "simulator/queue.h"
#include "simulator/snapshot.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace hocket::simulator {

namespace {

constexpr double same_time = 1 + 1e-12; // what differs by less is told before rates are worked out anew
constexpr double long_enough = 1e-3;    // for a period, of the time so far: paces that differ have parted by then

class Engine final : public Listener {
  public:
    Engine(const Problem &problem, bool record)
        : problem_(problem), record_(record),
          may_leave_out_(!record && problem.packet_bytes <= 0 && problem.job_pieces.size() == 1) {
        network_ = problem.packet_bytes > 0 ? make_forwarding(problem, travels_, queue_, *this)
                                            : make_fluid(problem, travels_, queue_, *this);
        outcome_.finished.resize(problem.num_actors());
        worked_until_.resize(problem.num_actors());
        next_send_.resize(problem.num_actors());
        next_receive_.resize(problem.num_actors());
        make_programs();
        make_lanes();
    }

    Outcome run() {
        for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
            const std::size_t job = job_of(lanes_[lane].actor);
            queue_.push(problem_.job_start[job], Kind::start, static_cast<std::int32_t>(lane));
        }
        while (!queue_.empty()) {
            const double until = queue_.next_seconds() * same_time;
            double seconds = 0;
            while (!queue_.empty() && queue_.next_seconds() <= until) {
                const Event event = queue_.pop();
                seconds = event.seconds;
                handle(event);
            }
            network_->settle(seconds);
            start_work();
            if (due_) look(*std::exchange(due_, std::nullopt));
        }
        if (num_running_ > 0) throw std::logic_error("events ran out before all ranks had finished");
        return std::move(outcome_);
    }

    void has_left(std::int32_t travel, double seconds) override {
        travels_[travel].sent = seconds;
        const Travel &one = travels_[travel];
        if (is_eager(one)) return;
        const std::int32_t lane = lane_of(problem_.source[static_cast<std::size_t>(one.message)], one.piece);
        if (--lanes_[static_cast<std::size_t>(lane)].missing == 0) work(lane, seconds);
    }

    void has_arrived(std::int32_t travel, double seconds) override {
        const Travel one = travels_[travel];
        travels_.remove(travel);
        if (record_) { outcome_.records.push_back({one.message, one.step, one.piece, one.started, one.sent, seconds}); }
        const std::int32_t lane = lane_of(problem_.target[static_cast<std::size_t>(one.message)], one.piece);
        Lane &own = lanes_[static_cast<std::size_t>(lane)];
        const auto actor = static_cast<std::size_t>(own.actor);
        const double receive_seconds = problem_.receive_seconds[actor],
                     received = in_turn(next_receive_, actor, seconds);
        if (own.step == one.step) {
            own.until = std::max(own.until, received) + receive_seconds;
            if (--own.missing == 0) work(lane, seconds);
        } else {
            Early &early = early_of(own, one.step);
            ++early.count;
            early.until = std::max(early.until, received) + receive_seconds;
        }
    }

  private:
    /// One repeat of an actor's program.
    struct Entry {
        std::int64_t send_begin = 0;
        std::int32_t repeat = 0, num_sends = 0, num_receives = 0;
        double work = 0;
    };
    /// What came before its step has begun.
    struct Early {
        std::int32_t step = 0, next = -1, count = 0;
        double until = 0;
    };
    /// An actor and a piece.
    struct Lane {
        std::int32_t actor = 0, piece = 0;
        std::int64_t entry = -1;
        std::int32_t repetition = 0;
        std::int32_t step = -1;   // whose messages count now
        std::int32_t missing = 0; // messages of it that have not left yet, or are not there
        double until = 0;         // when all that arrived has been received
        std::int32_t early = -1;
    };

    /// A lane whose messages are there, before its actor has begun to work.
    struct Ready {
        std::int32_t lane = 0, step = 0, piece = 0;
        double seconds = 0;
    };

    std::size_t job_of(std::int32_t actor) const {
        return static_cast<std::size_t>(problem_.actor_job[static_cast<std::size_t>(actor)]);
    }
    std::int32_t lane_of(std::int64_t actor, std::int32_t piece) const {
        return lane_begins_[static_cast<std::size_t>(actor)] + piece;
    }

    /// Its sender goes on as soon as the message is handed over; others wait until the last byte has left.
    bool is_eager(const Travel &travel) const {
        const double most = problem_.eager_bytes[static_cast<std::size_t>(travel.message)];
        return most > 0 && travel.bytes <= most;
    }
    /// When the actor may send or receive what could be sent or received now: a gap after what came before.
    double in_turn(std::vector<double> &next, std::size_t actor, double seconds) const {
        const double gap = problem_.gap_seconds[actor];
        if (gap <= 0) return seconds;
        const double begin = std::max(seconds, next[actor]);
        next[actor] = begin + gap;
        return begin;
    }

    void make_programs() {
        const std::size_t num_repeats = problem_.repeat_pattern.size(), num_actors = problem_.num_actors();
        step_begins_.resize(num_repeats);
        std::vector<std::int64_t> steps(problem_.job_pieces.size());
        entry_begins_.assign(num_actors + 1, 0);
        std::vector<std::int64_t> owners;
        std::vector<Entry> entries;
        std::vector<std::int64_t> slot(num_actors, -1); // of an actor's entry for the repeat at hand
        for (std::size_t repeat = 0; repeat < num_repeats; ++repeat) {
            std::int64_t &step = steps[static_cast<std::size_t>(problem_.repeat_job[repeat])];
            step_begins_[repeat] = static_cast<std::int32_t>(step);
            step += problem_.repeat_times[repeat];
            if (step > std::numeric_limits<std::int32_t>::max()) throw std::length_error("too many steps");
            const std::size_t first = entries.size();
            const auto own = [&](std::int64_t actor) -> Entry & {
                std::int64_t &index = slot[static_cast<std::size_t>(actor)];
                if (index < static_cast<std::int64_t>(first)) {
                    index = static_cast<std::int64_t>(entries.size());
                    entries.push_back({.repeat = static_cast<std::int32_t>(repeat)});
                    owners.push_back(actor);
                    ++entry_begins_[static_cast<std::size_t>(actor) + 1];
                }
                return entries[static_cast<std::size_t>(index)];
            };
            const auto pattern = static_cast<std::size_t>(problem_.repeat_pattern[repeat]);
            for (auto message = problem_.pattern_begins[pattern]; message < problem_.pattern_begins[pattern + 1];
                 ++message) {
                Entry &sender = own(problem_.source[static_cast<std::size_t>(message)]);
                if (sender.num_sends++ == 0) sender.send_begin = message;
                ++own(problem_.target[static_cast<std::size_t>(message)]).num_receives;
            }
            for (auto i = problem_.work_begins[pattern]; i < problem_.work_begins[pattern + 1]; ++i) {
                own(problem_.work_actor[static_cast<std::size_t>(i)]).work +=
                    problem_.work[static_cast<std::size_t>(i)];
            }
        }
        for (std::size_t actor = 0; actor < num_actors; ++actor) entry_begins_[actor + 1] += entry_begins_[actor];
        entries_.resize(entries.size());
        std::vector<std::int64_t> next(entry_begins_.begin(), entry_begins_.end() - 1);
        for (std::size_t i = 0; i < entries.size(); ++i) {
            entries_[static_cast<std::size_t>(next[static_cast<std::size_t>(owners[i])]++)] = entries[i];
        }
    }

    void make_lanes() {
        lane_begins_.push_back(0);
        for (std::size_t actor = 0; actor < problem_.num_actors(); ++actor) {
            const auto pieces = problem_.job_pieces[static_cast<std::size_t>(problem_.actor_job[actor])];
            for (std::int32_t piece = 0; piece < pieces; ++piece) {
                lanes_.push_back({.actor = static_cast<std::int32_t>(actor), .piece = piece});
            }
            lane_begins_.push_back(static_cast<std::int32_t>(lanes_.size()));
        }
        num_running_ = lanes_.size();
    }

    void handle(const Event &event) {
        switch (event.kind) {
        case Kind::start: {
            Lane &lane = lanes_[static_cast<std::size_t>(event.subject)];
            lane.entry = entry_begins_[static_cast<std::size_t>(lane.actor)];
            begin(event.subject, event.seconds);
            break;
        }
        case Kind::send: network_->send(event.subject, event.seconds); break;
        case Kind::arrive: has_arrived(event.subject, event.seconds); break;
        case Kind::gathered: work(event.subject, event.seconds); break;
        case Kind::worked: advance(event.subject, event.seconds); break;
        case Kind::flown:
        case Kind::served:
        case Kind::hop: network_->handle(event); break;
        }
    }

    /// Begins the step that the lane has come to, if there is one.
    void begin(std::int32_t index, double seconds) {
        Lane &lane = lanes_[static_cast<std::size_t>(index)];
        if (lane.entry == entry_begins_[static_cast<std::size_t>(lane.actor) + 1]) {
            double &finished = outcome_.finished[static_cast<std::size_t>(lane.actor)];
            finished = std::max(finished, seconds + skipped_seconds_);
            lane.step = -1;
            --num_running_;
            return;
        }
        const Entry &entry = entries_[static_cast<std::size_t>(lane.entry)];
        lane.step = step_begins_[static_cast<std::size_t>(entry.repeat)] + lane.repetition;
        lane.missing = entry.num_sends + entry.num_receives;
        lane.until = 0;
        take_early(lane);
        const std::size_t job = job_of(lane.actor);
        const auto actor = static_cast<std::size_t>(lane.actor);
        const double bytes = problem_.chunk_bytes(job, lane.piece);
        const std::int32_t step = lane.step, piece = lane.piece;
        const double send_seconds = problem_.send_seconds[actor];
        const std::int64_t sends_end = entry.send_begin + entry.num_sends;
        for (std::int64_t message = entry.send_begin; message < sends_end; ++message) {
            const std::int32_t travel =
                travels_.add({.message = static_cast<std::int32_t>(message),
                              .step = step,
                              .piece = piece,
                              .bytes = bytes * problem_.chunks[static_cast<std::size_t>(message)]});
            const double handed_over = seconds + static_cast<double>(message - entry.send_begin + 1) * send_seconds;
            if (is_eager(travels_[travel])) {
                --lane.missing;
                lane.until = std::max(lane.until, handed_over);
            }
            const double leaves = in_turn(next_send_, actor, handed_over);
            if (leaves > seconds) {
                queue_.push(leaves, Kind::send, travel);
            } else {
                network_->send(travel, seconds);
            }
        }
        // By an event: a long program of steps that wait for nothing would be a deep recursion.
        if (lane.missing == 0) queue_.push(std::max(seconds, lane.until), Kind::gathered, index);
    }

    /// What follows the messages of a step; an actor works on one piece at a time.
    void work(std::int32_t index, double seconds) {
        const Lane &lane = lanes_[static_cast<std::size_t>(index)];
        const Entry &entry = entries_[static_cast<std::size_t>(lane.entry)];
        if (lane.until > seconds) { // what arrived is still being received
            queue_.push(lane.until, Kind::gathered, index);
        } else if (entry.work > 0) {
            ready_.push_back({index, lane.step, lane.piece, seconds});
        } else {
            advance(index, seconds);
        }
    }

    /// Of several lanes of an actor that are ready at one time, the earlier step goes first, then the earlier piece.
    void start_work() {
        const auto earlier = [](const Ready &one, const Ready &other) {
            return std::tie(one.step, one.piece) < std::tie(other.step, other.piece);
        };
        if (!std::ranges::is_sorted(ready_, earlier)) std::ranges::stable_sort(ready_, earlier);
        for (const Ready &one : ready_) {
            const Lane &lane = lanes_[static_cast<std::size_t>(one.lane)];
            const Entry &entry = entries_[static_cast<std::size_t>(lane.entry)];
            double &until = worked_until_[static_cast<std::size_t>(lane.actor)];
            until = std::max(until, one.seconds) + entry.work * problem_.chunk_bytes(job_of(lane.actor), lane.piece);
            queue_.push(until, Kind::worked, one.lane);
        }
        ready_.clear();
    }

    void advance(std::int32_t index, double seconds) {
        Lane &lane = lanes_[static_cast<std::size_t>(index)];
        const auto repeat = static_cast<std::size_t>(entries_[static_cast<std::size_t>(lane.entry)].repeat);
        if (++lane.repetition == problem_.repeat_times[repeat]) {
            lane.repetition = 0;
            ++lane.entry;
        } else if (may_leave_out_) {
            watch(index, static_cast<std::int64_t>(repeat), seconds);
        }
        begin(index, seconds);
    }

    /// The repetitions of a repeat are counted by the lane that is first to begin the second one.
    void watch(std::int32_t index, std::int64_t repeat, double seconds) {
        if (repeat > watched_repeat_) {
            watched_repeat_ = repeat;
            watched_ = index;
            marked_ = 0;
        }
        if (index == watched_) due_ = seconds;
    }

    /// Brent's search for a period, at the time when the lane that is watched has begun a repetition: all is compared
    /// with what it was at the last one whose number is a power of two. If only time has passed since, and all that are
    /// in the repeat have gone through as many repetitions of it, then the same follows again and again, until the
    /// first of them has come to the last one. So whole periods are left out: all that are in the repeat are as many
    /// repetitions ahead, and what comes then comes later.
    void look(double seconds) {
        const auto repeat = static_cast<std::size_t>(watched_repeat_);
        const std::int32_t begin = step_begins_[repeat],
                           times = static_cast<std::int32_t>(problem_.repeat_times[repeat]);
        const std::int32_t step = lanes_[static_cast<std::size_t>(watched_)].step, repetition = step - begin;
        if (repetition < 1 || repetition >= times) return; // it has gone on at once
        const Moment moment{.seconds = seconds, .step = step, .repeat_begin = begin, .repeat_end = begin + times};
        const std::int32_t period = repetition - marked_;
        const bool is_long = seconds - marked_seconds_ > long_enough * seconds;
        if (marked_ > 0 && is_long && times - repetition > period) {
            snapshot_.compare(moment);
            list();
            if (snapshot_.finish()) {
                skip(moment, period);
                return;
            }
        }
        if ((repetition & (repetition - 1)) != 0) return;
        snapshot_.write(moment);
        list();
        snapshot_.finish();
        marked_ = repetition;
        marked_seconds_ = seconds;
    }

    void skip(const Moment &moment, std::int32_t period) {
        std::int32_t last = moment.step;
        for (const Lane &lane : lanes_) {
            if (lane.step < moment.repeat_end) last = std::max(last, lane.step);
        }
        const std::int32_t times = (moment.repeat_end - 1 - last) / period;
        const auto move_on = [&moment, ahead = times * period](std::int32_t &step) {
            const bool inside = moment.repeat_begin <= step && step < moment.repeat_end;
            if (inside) step += ahead;
            return inside ? ahead : 0;
        };
        for (Lane &lane : lanes_) lane.repetition += move_on(lane.step);
        for (Travel &travel : travels_.all()) move_on(travel.step);
        for (Early &early : early_.all()) move_on(early.step);
        skipped_seconds_ += times * (moment.seconds - marked_seconds_);
        watched_ = -1; // What is left of the repeat is too short.
    }

    /// All that is known, for the snapshot.
    void list() {
        network_->list(snapshot_);
        for (const Lane &lane : lanes_) {
            if (!snapshot_.same()) return;
            snapshot_.step(lane.step);
            snapshot_.whole(lane.missing);
            snapshot_.time(lane.until);
            for (std::int32_t number = lane.early; number >= 0; number = early_[number].next) {
                snapshot_.whole(early_[number].count);
                snapshot_.step(early_[number].step);
                snapshot_.time(early_[number].until);
            }
            snapshot_.whole(0);
        }
        for (const auto *times : {&worked_until_, &next_send_, &next_receive_}) {
            for (const double until : *times) snapshot_.time(until);
        }
        for (const Event &event : queue_.events()) {
            const auto kind = static_cast<std::int64_t>(event.kind);
            switch (event.kind) {
            case Kind::send:
            case Kind::arrive: snapshot_.pending(kind, travels_[event.subject], event.seconds); break;
            case Kind::start:
            case Kind::gathered:
            case Kind::worked: snapshot_.pending(kind, event.subject, event.seconds); break;
            case Kind::flown:
            case Kind::served:
            case Kind::hop: break; // Some flows that have ended are out of date: the network knows the others.
            }
        }
    }

    Early &early_of(Lane &lane, std::int32_t step) {
        for (std::int32_t number = lane.early; number >= 0; number = early_[number].next) {
            if (early_[number].step == step) return early_[number];
        }
        lane.early = early_.add({.step = step, .next = lane.early});
        return early_[lane.early];
    }

    void take_early(Lane &lane) {
        for (std::int32_t *number = &lane.early; *number >= 0; number = &early_[*number].next) {
            if (early_[*number].step != lane.step) continue;
            const std::int32_t found = *number;
            lane.missing -= early_[found].count;
            lane.until = early_[found].until;
            *number = early_[found].next;
            early_.remove(found);
            return;
        }
    }

    const Problem &problem_;
    const bool record_;
    Pool<Travel> travels_;
    Queue queue_;
    std::unique_ptr<Network> network_;
    std::vector<Entry> entries_;             // actor after actor
    std::vector<std::int64_t> entry_begins_; // of each actor
    std::vector<std::int32_t> step_begins_;  // of each repeat: the number of its first repetition in its job
    std::vector<Lane> lanes_;
    std::vector<std::int32_t> lane_begins_; // of each actor
    Pool<Early> early_;
    std::vector<double> worked_until_;             // of each actor
    std::vector<double> next_send_, next_receive_; // of each actor: not before, if it has a gap
    std::vector<Ready> ready_;                     // at this instant
    std::size_t num_running_ = 0;
    Outcome outcome_;
    // The search for a period: not among packets, as rounding says which one is first of those that come at once.
    const bool may_leave_out_;
    double skipped_seconds_ = 0;
    std::int64_t watched_repeat_ = -1;
    std::int32_t watched_ = -1; // the lane
    std::optional<double> due_; // when it has begun a repetition, at this time
    std::int32_t marked_ = 0;   // the repetition that the snapshot is of, or 0
    double marked_seconds_ = 0;
    Snapshot snapshot_;
};

} // namespace

Outcome run(const Problem &problem, bool record) { return Engine(problem, record).run(); }

} // namespace hocket::simulator
