// Send: one tensor from the root to one other rank: a broadcast to one.
#include <fmt/format.h>

#include <algorithm>

#include "collective/kinds/shared.h"
#include "hvd/direct.h"

namespace hvd::collective {

namespace {

/// The sender has an input and names the receiver as root; the receiver has an output and names the sender.
/// A pair of ranks is a set of its own, by direction, so that the others need not call and any name serves.
void pair_up(Submission* s, int32_t rank, int32_t size) {
  const bool sends = !s->inputs.empty();
  const int32_t other = s->root;
  const char* const verb = sends ? "send" : "receive";
  if (other < 0 || other >= size || other == rank) {
    throw Error(HVD_INVALID,
                fmt::format("{} '{}': the other rank is {}: expected one from 0 to {} that is not this one",
                            verb, s->name, other, size - 1));
  }
  for (const int32_t member : {rank, other}) {
    if (s->members.empty() || std::binary_search(s->members.begin(), s->members.end(), member)) continue;
    throw Error(HVD_INVALID, fmt::format("{} '{}': rank {} is no member of process set '{}'", verb, s->name,
                                         member, s->set));
  }
  if (sends) s->outputs = std::exchange(s->inputs, {});  // read, and not written: this rank is the root
  s->root = sends ? rank : other;
  s->set = fmt::format("hvd.{}>{}{}{}", s->root, sends ? other : rank, s->set.empty() ? "" : ".", s->set);
  s->members = {std::min(rank, other), std::max(rank, other)};
}

constexpr Form kForms[] = {
    {.collective = HVD_COLLECTIVE_SEND, .name = "send", .inputs = Given::kEverywhere},
    {.collective = HVD_COLLECTIVE_RECEIVE, .name = "receive", .outputs = Given::kEverywhere},
};

}  // namespace

extern const Row kSendRow;
const Row kSendRow{.kind = Kind::kSend,
                   .name = "send",
                   .forms = kForms,
                   .collective = HVD_COLLECTIVE_BROADCAST,
                   .travels = Travel::kRoots,
                   .rooted = true,
                   .in_place = true,
                   .bytes = true,
                   .needs_all = true,
                   .resolve = pair_up,
                   .validate = broadcast::validate,
                   .inspect = broadcast::inspect,
                   .decide = broadcast::decide,
                   .misfit = broadcast::misfit,
                   .plan = plan_parts,
                   .parts = broadcast::parts};

}  // namespace hvd::collective
