// The list of what is kept.
#include "modules/mpi/kept.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace hvdmpi {
namespace {

struct Kept {
  std::mutex mutex;
  std::vector<std::unique_ptr<Slot>> slots;

  static Kept& get() {
    static auto* const kept = new Kept;  // reachable, so that nobody takes it for forgotten
    return *kept;
  }
};

}  // namespace

void keep(std::unique_ptr<Slot> slot) {
  Kept& kept = Kept::get();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  kept.slots.push_back(std::move(slot));
}

void sweep_kept() {
  const auto finished = [](const std::unique_ptr<Slot>& slot) {
    if (slot->request == MPI_REQUEST_NULL) return false;  // failed: who knows what of it goes on
    int complete = 0;
    return MPI_Test(&slot->request, &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && complete != 0;
  };
  Kept& kept = Kept::get();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  kept.slots.erase(std::remove_if(kept.slots.begin(), kept.slots.end(), finished), kept.slots.end());
}

}  // namespace hvdmpi
