// Barrier: complete as soon as all ranks have called it.
#include "collective/kinds/kind.h"

namespace hvd::collective {

namespace {
void exchange(const Submission&, int32_t, std::span<const uint8_t* const>) {}
}  // namespace

extern const Row kBarrierRow;
const Row kBarrierRow{.kind = Kind::kBarrier, .name = "barrier", .exchange = exchange};

}  // namespace hvd::collective
