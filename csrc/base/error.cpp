#include "base/error.h"

#include <cerrno>
#include <utility>

namespace hocket {

Failure Failure::resource(std::string call) {
    Failure failure(Cause::resource, -1, std::move(call));
    failure.error_number = errno;
    return failure;
}

} // namespace hocket
