// Barrier: complete as soon as all ranks have called it.
#include "collective/kinds/kind.h"

namespace hvd::collective {

extern const Row kBarrierRow;
const Row kBarrierRow{.kind = Kind::kBarrier, .name = "barrier"};

}  // namespace hvd::collective
