// What can go wrong below Python. A Failure is data; csrc/bindings turns it into a class of hocket.errors.
#pragma once

#include "base/types.h"

#include <cerrno>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace hocket {

/// What one rank calls: equal on all ranks, or the call is a mismatch. Independent of how the algorithm moves data.
struct Fingerprint {
    std::uint64_t sequence = 0; // number of the call on its communicator, from 1
    std::uint64_t count = 0;
    std::uint64_t schedule = 0;
    std::uint64_t detail = 0; // what else has to agree: the identity of the reduction
    std::int32_t kind = 0;
    std::int32_t dtype = 0;
    std::int32_t op = 0;
    std::int32_t root = 0;

    bool operator==(const Fingerprint &) const = default;

    /// A number that other fingerprints have by chance only.
    std::uint64_t digest() const {
        std::uint64_t hash = 0, multiplier = 0x9e3779b97f4a7c15U;
        const auto add = [&](std::uint64_t word) { // products that do not wait for each other
            hash += (word ^ word >> 32) * multiplier;
            multiplier *= 0xff51afd7ed558ccdU;
        };
        add(sequence);
        add(count);
        add(schedule);
        add(detail);
        add(pair_of(kind, dtype));
        add(pair_of(op, root));
        hash *= 0xff51afd7ed558ccdU;
        return hash ^ hash >> 32;
    }
    /// What travels with every signal: the epoch of the communicator, and 24 bits of a digest. One in 16 million
    /// differing calls has the same bits. The digests and records on control pages show that difference instead.
    static std::uint32_t tag(std::uint64_t digest, std::uint8_t epoch) {
        return std::uint32_t{epoch} << 24 | (static_cast<std::uint32_t>(digest) & 0xffffffU);
    }
    static std::uint8_t epoch_of(std::uint32_t tag) { return static_cast<std::uint8_t>(tag >> 24); }
};

enum class Cause : std::int32_t { none, mismatch, timeout, died, aborted, forked, resource, internal };

struct Failure final : std::exception {
    explicit Failure(Cause its_cause = Cause::internal, int its_rank = -1, std::string its_text = "")
        : cause(its_cause), rank(its_rank), text(std::move(its_text)) {}

    Cause cause;
    int rank; // the guilty one, where there is one; else -1
    std::uint64_t sequence = 0;
    double seconds = 0;
    int error_number = 0;
    std::vector<int> missing;         // who was waited for; aborted: who has left by closing
    std::map<int, Fingerprint> calls; // mismatch: who called what
    std::map<int, std::string> sites; // where the program makes some of these calls
    std::map<int, std::string> hosts; // of the ranks that it names, where ranks are on several
    std::string text;                 // reason, name of the system call, or an internal complaint
    int self = -1;                    // who raises it
    std::string label;                // and in which collective

    const char *what() const noexcept override { return text.c_str(); }

    static Failure internal(std::string text) { return Failure(Cause::internal, -1, std::move(text)); }
    /// Of the system call `call`, which just failed with `errno`.
    static Failure resource(std::string call) {
        Failure failure(Cause::resource, -1, std::move(call));
        failure.error_number = errno;
        return failure;
    }
    /// Of every use in a forked child.
    static Failure forked() { return Failure(Cause::forked); }
};

} // namespace hocket
