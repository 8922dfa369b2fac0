// Where in the program a call is made.
#pragma once

namespace hocket {

/// "file:line" of the innermost Python frame of this thread that is neither Hocket's nor PyTorch's, for good; null
/// where there is none. The interpreter is locked.
const char *call_site();

} // namespace hocket
