// Resolves a set's rule in each generation's assignment.
#include "elastic/process_set.h"

#include <fmt/format.h>

#include <algorithm>

namespace hvd::elastic {

namespace {

hvd_set_rule checked_rule(const std::string& name, hvd_set_rule rule) {
  if (rule == 0) return HVD_SET_RULE_WORKERS;
  if (rule < HVD_SET_RULE_WORKERS || rule > HVD_SET_RULE_END) {
    throw Error(HVD_INVALID,
                fmt::format("rule of process set '{}' is {}: expected one of hvd_set_rule, {} to {}", name,
                            rule, HVD_SET_RULE_WORKERS, HVD_SET_RULE_END));
  }
  return rule;
}

std::vector<int32_t> checked_ranks(const std::string& name, std::vector<int32_t> ranks, size_t size) {
  if (ranks.empty())
    throw Error(HVD_INVALID, fmt::format("process set '{}' has no ranks: expected one or more", name));
  for (const int32_t rank : ranks) {
    if (rank < 0 || static_cast<size_t>(rank) >= size) {
      throw Error(HVD_INVALID,
                  fmt::format("process set '{}' has rank {}: expected 0 to {}", name, rank, size - 1));
    }
  }
  std::sort(ranks.begin(), ranks.end());
  const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
  if (twice != ranks.end())
    throw Error(HVD_INVALID, fmt::format("process set '{}' has rank {} twice", name, *twice));
  return ranks;
}

std::string list(const std::vector<int32_t>& ranks) {
  constexpr size_t kShown = 16;
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i)
    text += fmt::format("{}{}", i > 0 ? ", " : "", ranks[i]);
  if (ranks.size() > kShown) text += fmt::format(", ... ({} in all)", ranks.size());
  return text.empty() ? "nobody" : text;
}

/// Local and cross place of the member `self` (an index into `ranks`), as membership has them for all ranks.
void find_places(const session::Assignment& assignment, size_t self, SetPlace* place) {
  std::vector<int32_t> local_ranks;
  for (size_t i = 0; i < place->ranks.size(); ++i) {
    const std::string& host = assignment.members[static_cast<size_t>(place->ranks[i])].host;
    int32_t before = 0;
    for (size_t j = 0; j < i; ++j) {
      if (assignment.members[static_cast<size_t>(place->ranks[j])].host == host) ++before;
    }
    local_ranks.push_back(before);
  }
  place->rank = static_cast<int32_t>(self);
  place->local_rank = local_ranks[self];
  place->cross_rank = 0;
  const std::string& host = assignment.members[static_cast<size_t>(place->ranks[self])].host;
  for (size_t i = 0; i < place->ranks.size(); ++i) {
    if (assignment.members[static_cast<size_t>(place->ranks[i])].host == host) ++place->local_size;
    if (local_ranks[i] != local_ranks[self]) continue;
    ++place->cross_size;
    if (i < self) ++place->cross_rank;
  }
}

}  // namespace

ProcessSet::ProcessSet(std::string name, hvd_set_rule rule, std::optional<std::vector<int32_t>> ranks,
                       const session::Assignment& assignment)
    : name_(std::move(name)), rule_(checked_rule(name_, rule)), generation_(assignment.generation) {
  const bool finds_members = rule_ == HVD_SET_RULE_LOCAL || rule_ == HVD_SET_RULE_CROSS;
  if (finds_members && ranks) {
    throw Error(
        HVD_INVALID,
        fmt::format("ranks of process set '{}' are given: expected NULL and a count of 0 with rule {}", name_,
                    rule_ == HVD_SET_RULE_LOCAL ? "HVD_SET_RULE_LOCAL" : "HVD_SET_RULE_CROSS"));
  }
  if (finds_members) return;
  ranks_ = checked_ranks(name_, std::move(ranks).value_or(std::vector<int32_t>()), assignment.members.size());
  for (const int32_t rank : ranks_) workers_.push_back(assignment.members[static_cast<size_t>(rank)].worker);
  std::sort(workers_.begin(), workers_.end());
}

std::vector<int32_t> ProcessSet::resolve(const session::Assignment& assignment) const {
  const Member& self = assignment.members.at(static_cast<size_t>(assignment.rank));
  std::vector<int32_t> members;
  for (size_t i = 0; i < assignment.members.size(); ++i) {
    const Member& member = assignment.members[i];
    const auto rank = static_cast<int32_t>(i);
    bool in = false;
    switch (rule_) {
      case HVD_SET_RULE_LOCAL: in = member.host == self.host; break;
      case HVD_SET_RULE_CROSS: in = member.local_rank == self.local_rank; break;
      case HVD_SET_RULE_WORKERS:
        in = std::binary_search(workers_.begin(), workers_.end(), member.worker);
        break;
      default: in = std::binary_search(ranks_.begin(), ranks_.end(), rank);
    }
    if (in) members.push_back(rank);
  }
  return members;
}

std::shared_ptr<const SetPlace> ProcessSet::in(const session::Assignment& assignment) {
  if (rule_ == HVD_SET_RULE_END && assignment.generation != generation_) {
    throw Error(HVD_INVALID,
                fmt::format("process set '{}' ended with generation {}, in which it was made: this is "
                            "generation {}",
                            name_, generation_, assignment.generation));
  }
  std::lock_guard lock(mutex_);
  if (place_ != nullptr && place_->generation == assignment.generation) return place_;
  auto place = std::make_shared<SetPlace>();
  place->generation = assignment.generation;
  place->ranks = resolve(assignment);
  const auto self = std::lower_bound(place->ranks.begin(), place->ranks.end(), assignment.rank);
  if (self != place->ranks.end() && *self == assignment.rank)
    find_places(assignment, static_cast<size_t>(self - place->ranks.begin()), place.get());
  place_ = place;
  return place_;
}

std::shared_ptr<const SetPlace> ProcessSet::member_of(const session::Assignment& assignment) {
  std::shared_ptr<const SetPlace> place = in(assignment);
  if (place->rank >= 0) return place;
  Status status(HVD_INVALID,
                fmt::format("rank {} is no member of process set '{}': its members in generation {} are {}",
                            assignment.rank, name_, assignment.generation, list(place->ranks)));
  throw Error(status.at_rank(assignment.rank).in_generation(assignment.generation));
}

}  // namespace hvd::elastic
