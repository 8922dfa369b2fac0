// Where in the program a call is made.
#pragma once

#include "control/control.h"

namespace hocket {

/// The innermost Python line of this thread that is neither Hocket's nor PyTorch's, for good; null where there is none.
/// The interpreter is locked.
const Site *call_site();

} // namespace hocket
