#include "error.h"

#include <cerrno>
#include <initializer_list>
#include <utility>

namespace hocket {

std::uint64_t Fingerprint::digest() const {
    std::uint64_t hash = 0, multiplier = 0x9e3779b97f4a7c15U;
    const auto signless = [](std::int32_t value) {
        return static_cast<std::uint64_t>(static_cast<std::uint32_t>(value));
    };
    for (std::uint64_t word : {sequence, count, schedule, detail, signless(kind) << 32 | signless(dtype),
                               signless(op) << 32 | signless(root)}) {
        hash += (word ^ word >> 32) * multiplier; // products that do not wait for each other
        multiplier *= 0xff51afd7ed558ccdU;
    }
    hash *= 0xff51afd7ed558ccdU;
    return hash ^ hash >> 32;
}

Failure Failure::internal(std::string text) {
    Failure failure;
    failure.text = std::move(text);
    return failure;
}

Failure Failure::resource(std::string call) {
    Failure failure;
    failure.cause = Cause::resource;
    failure.error_number = errno;
    failure.text = std::move(call);
    return failure;
}

Failure Failure::forked() {
    Failure failure;
    failure.cause = Cause::forked;
    return failure;
}

} // namespace hocket
