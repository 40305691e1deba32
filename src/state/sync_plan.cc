// Chooses a source for each range of bytes that somebody lacks.
#include "state/sync_plan.h"

#include <algorithm>
#include <map>

#include "base/roster.h"

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

std::vector<Summary> believed(std::vector<Summary> told, const std::vector<Summary>& known) {
  for (size_t rank = 0; rank < told.size(); ++rank) {
    Summary& s = told[rank];
    if (!known.empty()) s.has_state = s.has_state && known[rank].has_state;
    if (s.has_state && known.empty()) continue;
    // Where nobody has state the counter of all begins with rank 0's.
    const uint64_t before = s.has_state ? known[rank].revision : 0;
    if (s.revision > before) s.revision = before + std::min(s.revision - before, kMostCommits);
  }
  return told;
}

bool all_agree(const std::vector<Summary>& summaries) {
  return std::all_of(summaries.begin(), summaries.end(), [&](const Summary& s) {
    return s.has_state && s.revision == summaries[0].revision && s.digest == summaries[0].digest;
  });
}

Holdings hold_whole(const std::vector<std::vector<Version>>& versions, int32_t root) {
  const std::vector<Version>& wanted = versions[static_cast<size_t>(root)];
  Holdings holdings;
  for (const Version& version : wanted) holdings.variables.push_back({version.size});
  for (const auto& row : versions) {
    auto& has = holdings.has.emplace_back();
    for (size_t v = 0; v < wanted.size(); ++v) has.push_back({row[v] == wanted[v]});
  }
  return holdings;
}

namespace {

using Ranks = std::vector<int32_t>;

/// Bytes of one variable that the same ranks lack.
struct Run {
  Ranks holders, receivers;
  uint64_t offset = 0, size = 0;
};

std::vector<Run> runs_of(const Holdings& holdings, uint32_t variable) {
  const Holdings::Item& item = holdings.variables[variable];
  std::vector<Run> runs;
  for (uint64_t piece = 0; item.size > 0 && piece < item.pieces(); ++piece) {
    const uint64_t offset = piece * item.piece;
    const uint64_t size = item.piece == 0 ? item.size : std::min(item.piece, item.size - offset);
    Run run;
    for (size_t rank = 0; rank < holdings.has.size(); ++rank) {
      (holdings.has[rank][variable][piece] ? run.holders : run.receivers)
          .push_back(static_cast<int32_t>(rank));
    }
    if (run.receivers.empty()) continue;
    if (!runs.empty()) {
      Run& last = runs.back();
      if (last.offset + last.size == offset && last.size + size <= kRange &&
          last.receivers == run.receivers) {
        last.size += size;
        continue;
      }
    }
    run.offset = offset;
    run.size = size;
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace

std::vector<Transfer> plan_transfers(const Holdings& holdings) {
  std::vector<Transfer> transfers;
  std::vector<Ranks> holders;    // of each transfer
  std::map<Ranks, size_t> open;  // receivers to the transfer that still takes small variables
  const auto reads = [&](int32_t reader, int32_t source) {
    return !holdings.reads.empty() &&
           holdings.reads[static_cast<size_t>(reader)][static_cast<size_t>(source)];
  };
  for (uint32_t variable = 0; variable < holdings.variables.size(); ++variable) {
    for (Run& run : runs_of(holdings, variable)) {
      const Part part{variable, run.offset, run.size};
      if (run.size < kPackBelow) {
        const auto found = open.find(run.receivers);
        if (found != open.end() && transfers[found->second].bytes + run.size <= kPackLimit) {
          Transfer& with = transfers[found->second];
          // Who holds all of it is whoever is no receiver: the same for each part.
          with.parts.push_back(part);
          with.bytes += run.size;
          continue;
        }
        open[run.receivers] = transfers.size();
      }
      if (holdings.variables[variable].readable && run.size >= kDirectFrom) {
        Ranks others;
        for (const int32_t rank : run.receivers) {
          Ranks readable;
          for (const int32_t holder : run.holders) {
            if (reads(rank, holder)) readable.push_back(holder);
          }
          if (readable.empty()) {
            others.push_back(rank);
            continue;
          }
          transfers.push_back({-1, {rank}, {part}, run.size, true});
          holders.push_back(std::move(readable));
        }
        run.receivers = std::move(others);
        if (run.receivers.empty()) continue;
      }
      transfers.push_back({-1, std::move(run.receivers), {part}, run.size, false});
      holders.push_back(std::move(run.holders));
    }
  }

  // Sources are chosen when the sizes are known.
  std::vector<uint64_t> load(holdings.has.size(), 0);
  for (size_t i = 0; i < transfers.size(); ++i) {
    Transfer& transfer = transfers[i];
    for (const int32_t rank : holders[i]) {
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
