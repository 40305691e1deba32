// Counts what operator new has given out in this program so far.
#pragma once

#include <cstddef>

namespace hvd {
size_t allocations();
}
