// Compares the digests of a commit over all ranks, and names who differs in what.
#include "state/divergence.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>

#include "state/flight.h"
#include "state/impl.h"

namespace hvd::state {
namespace {

/// What each rank says first.
struct Head {
  uint64_t rank = 0, revision = 0, variables = 0;
  Digest digest;
};
static_assert(sizeof(Head) == 40, "no padding on the wire");

/// Each rank has said `size` bytes, no rank says more than its own, and this rank's have come round as it
/// said them: who spoke for others would have them named.
Status check(const std::vector<Brought>& parts, const std::vector<uint8_t>& all, int32_t rank,
             const void* mine, size_t size) {
  const uint8_t* at = all.data();
  for (const Brought& part : parts) {
    if (part.size != size) {
      Status status(HVD_INTERNAL, fmt::format("state: rank {} says {} bytes of its commit: expected {}",
                                              part.rank, part.size, size));
      return status.at_rank(part.rank);
    }
    if (part.rank == rank && size > 0 && std::memcmp(at, mine, size) != 0)
      return {HVD_INTERNAL, "state: what was handed round of this rank's commit is not its own"};
    at += size;
  }
  return {};
}

}  // namespace

std::vector<Divergence> find_divergence(const std::vector<std::vector<Version>>& versions) {
  std::vector<Divergence> all;
  const size_t variables = versions.empty() ? 0 : versions[0].size();
  for (size_t v = 0; v < variables; ++v) {
    std::map<std::pair<Digest, uint64_t>, size_t> counts;
    for (const auto& row : versions) ++counts[{row[v].digest, row[v].size}];
    if (counts.size() < 2) continue;
    const auto most = std::max_element(counts.begin(), counts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    Divergence divergence{static_cast<uint32_t>(v), {}, 2 * most->second > versions.size()};
    for (size_t i = 0; i < versions.size(); ++i) {
      const bool same = std::pair(versions[i][v].digest, versions[i][v].size) == most->first;
      if (!divergence.majority || !same) divergence.odd.push_back(i);
    }
    all.push_back(std::move(divergence));
  }
  return all;
}

Status State::Impl::find_diverged(collective::Engine& engine, int32_t rank, Duration timeout,
                                  std::vector<Diverged>* ret_diverged) {
  if (Status status = not_in_callback("commit"); !status.ok()) return status;
  const Time deadline = now() + timeout;
  try {
    Status status = compare_variables(engine, rank, deadline, ret_diverged);
    if (status.ok() && !shards.empty()) status = compare_shards(deadline, ret_diverged);
    if (!status.ok() || ret_diverged->empty()) return status;
  } catch (const std::bad_alloc&) { return starved(engine, rank, "a comparison of commits"); }
  // All ranks hear the verdict before one acts on it: a rank that stops leaves, which a slower one would take
  // for a loss. This rank has heard it, whatever becomes of the message.
  const uint8_t known = 1;
  std::vector<uint8_t> all;
  static_cast<void>(gather(engine, deadline, "hvd.divergence.known", &known, sizeof(known), &all));
  return {};
}

Status State::Impl::compare_shards(Time deadline, std::vector<Diverged>* ret_diverged) {
  Generation generation;
  if (Status status = generation_source(&generation); !status.ok()) return status;
  std::vector<Shards::Rot> found;
  if (Status status = shards.find_rot(generation, deadline, &found); !status.ok()) return status;
  for (const auto& [holder, what] : found) {
    Diverged diverged;
    diverged.ranks = {holder};
    diverged.majority = true;
    diverged.kept = true;
    diverged.text =
        fmt::format("state diverged at revision {}: {} is not what was committed", revision(), what);
    ret_diverged->push_back(std::move(diverged));
  }
  return {};
}

Status State::Impl::compare_variables(collective::Engine& engine, int32_t rank, Time deadline,
                                      std::vector<Diverged>* ret_diverged) {
  Head mine{static_cast<uint64_t>(rank), 0, variables.size(), {}};
  {
    const std::lock_guard lock(mutex);
    mine.revision = summary.revision;
    mine.digest = summary.digest;
  }
  std::vector<uint8_t> all;
  std::vector<Brought> parts;
  Status status = gather(engine, deadline, "hvd.divergence.head", &mine, sizeof(mine), &all, &parts);
  if (status.ok()) status = check(parts, all, rank, &mine, sizeof(mine));
  if (!status.ok()) return status;
  std::vector<Head> heads(parts.size());
  if (!heads.empty()) std::memcpy(heads.data(), all.data(), heads.size() * sizeof(Head));
  for (size_t i = 0; i < heads.size(); ++i) {
    Head& head = heads[i];
    // Who brought it, and not who it says to be.
    head.rank = static_cast<uint64_t>(parts[i].rank);
    if (head.revision == heads[0].revision && head.variables == heads[0].variables) continue;
    return {
        HVD_MISMATCH,
        fmt::format(
            "rank {} commits revision {} of {} keys and rank {} revision {} of {} keys: expected the same "
            "commit of the same keys on every rank",
            heads[0].rank, heads[0].revision, heads[0].variables, head.rank, head.revision, head.variables)};
  }
  // Every rank has the same heads, so that all of them decide alike.
  const auto first = [&](const Head& head) { return head.digest == heads[0].digest; };
  if (std::all_of(heads.begin(), heads.end(), first)) return {};

  std::vector<Version> row;
  for (auto& [key, variable] : variables) row.push_back({variable.digest, variable.committed_bytes().size()});
  const size_t bytes = row.size() * sizeof(Version);
  status = gather(engine, deadline, "hvd.divergence.digests", row.data(), bytes, &all, &parts);
  if (status.ok()) status = check(parts, all, rank, row.data(), bytes);
  if (!status.ok()) return status;
  if (parts.size() != heads.size())
    return {HVD_INTERNAL, fmt::format("state: digests of {} ranks: expected {}", parts.size(), heads.size())};
  std::vector<std::vector<Version>> versions(heads.size(), row);
  for (size_t i = 0; i < heads.size() && bytes > 0; ++i)
    std::memcpy(versions[i].data(), all.data() + i * bytes, bytes);
  std::vector<const Variable*> in_order;
  for (const auto& [key, variable] : variables) in_order.push_back(&variable);
  const auto name = [&](size_t i) { return static_cast<int32_t>(heads[i].rank); };
  for (const Divergence& found : find_divergence(versions)) {
    Diverged diverged;
    diverged.majority = found.majority;
    for (size_t i : found.odd) diverged.ranks.push_back(name(i));
    const Spec& spec = in_order[found.variable]->spec;
    diverged.text = fmt::format(
        "state diverged at revision {}: key '{}' ({}) of rank{} {} differs from {}", mine.revision, spec.key,
        spec.describe(), found.odd.size() > 1 ? "s" : "", fmt::join(diverged.ranks, ", "),
        found.majority ? fmt::format("that of the other {}", heads.size() - found.odd.size())
                       : std::string("one to another, and no majority says which is right"));
    ret_diverged->push_back(std::move(diverged));
  }
  return {};
}

void State::Impl::disown() {
  const std::lock_guard lock(mutex);
  summary.has_state = false;
  summary.revision = 0;
}

}  // namespace hvd::state
