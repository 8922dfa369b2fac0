#include "base/error.h"

#include <cerrno>
#include <utility>

namespace hocket {

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
