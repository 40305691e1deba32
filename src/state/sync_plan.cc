// Chooses a source for each variable that somebody lacks.
#include "state/sync_plan.h"

#include <algorithm>
#include <map>

namespace hvd::state {

int32_t choose_root(const std::vector<Summary>& summaries) {
  int32_t root = -1;
  for (size_t rank = 0; rank < summaries.size(); ++rank) {
    if (!summaries[rank].has_state) continue;
    if (root < 0 || summaries[rank].revision > summaries[static_cast<size_t>(root)].revision) {
      root = static_cast<int32_t>(rank);
    }
  }
  return std::max(root, 0);
}

bool all_agree(const std::vector<Summary>& summaries) {
  return std::all_of(summaries.begin(), summaries.end(), [&](const Summary& s) {
    return s.has_state && s.revision == summaries[0].revision && s.digest == summaries[0].digest;
  });
}

std::vector<Transfer> plan_transfers(const std::vector<std::vector<Version>>& versions, int32_t root) {
  const std::vector<Version>& wanted = versions[static_cast<size_t>(root)];
  std::vector<Transfer> transfers;
  std::map<std::vector<int32_t>, size_t> open;  // receivers to the transfer that still takes small variables
  for (uint32_t variable = 0; variable < wanted.size(); ++variable) {
    const uint64_t size = wanted[variable].size;
    std::vector<int32_t> receivers;
    for (size_t rank = 0; rank < versions.size(); ++rank) {
      if (versions[rank][variable] != wanted[variable]) receivers.push_back(static_cast<int32_t>(rank));
    }
    if (size == 0 || receivers.empty()) continue;
    if (size < kPackBelow) {
      auto found = open.find(receivers);
      if (found != open.end() && transfers[found->second].bytes + size <= kPackLimit) {
        transfers[found->second].variables.push_back(variable);
        transfers[found->second].bytes += size;
        continue;
      }
      open[receivers] = transfers.size();
    }
    transfers.push_back({-1, std::move(receivers), {variable}, size});
  }

  // All that are no receivers have it. Sources are chosen when the sizes are known.
  std::vector<uint64_t> load(versions.size(), 0);
  for (Transfer& transfer : transfers) {
    for (int32_t rank = 0; rank < static_cast<int32_t>(versions.size()); ++rank) {
      if (std::binary_search(transfer.receivers.begin(), transfer.receivers.end(), rank)) continue;
      if (transfer.source < 0 ||
          load[static_cast<size_t>(rank)] < load[static_cast<size_t>(transfer.source)]) {
        transfer.source = rank;
      }
    }
    load[static_cast<size_t>(transfer.source)] += transfer.bytes;
  }
  return transfers;
}

}  // namespace hvd::state
