// Broadcast: one or more tensors of the root, to all, in place. As bytes, so of any dtype.
#include <cstring>

#include "collective/kinds/shared.h"

namespace hvd::collective {

namespace broadcast {

Status validate(const Validation& v) { return v.group(v.submission().outputs, "tensor"); }

const char* inspect(const Signature&, size_t) { return nullptr; }

void decide(Decision& d) {
  if (d.alone() || d.bytes() == 0) return;
  if (!d.root().carries) return d.run(d.call().specs.size());  // as many as there can be
  d.outcome().payload = std::move(d.root().payload);
  d.outcome().carries = true;
  d.own(d.call().root);  // the root has it
}

Fit misfit(const Answer& a) {
  const size_t bytes = a.op.call->payload;
  if (a.rank == a.submission().root || bytes == 0) return {};
  return {nullptr, bytes};
}

void parts(const Operation& op, std::vector<backend::Part>* ret_parts) {
  for (const Tensor& t : op.submission.outputs) ret_parts->push_back({t.data, t.data, t.bytes()});
}

}  // namespace broadcast

namespace {

void exchange(const Submission& s, int32_t rank, std::span<const uint8_t* const> data) {
  if (rank == s.root) return;
  size_t at = 0;
  for (const Tensor& t : s.outputs) {
    at = payload_aligned(at);
    const size_t bytes = t.bytes();
    if (bytes > 0) std::memcpy(t.data, data[static_cast<size_t>(s.root)] + at, bytes);
    at += bytes;
  }
}

constexpr Form kForms[] = {{.collective = HVD_COLLECTIVE_BROADCAST,
                            .name = "broadcast",
                            .outputs = Given::kEverywhere,
                            .group = true}};

}  // namespace

extern const Row kBroadcastRow;
const Row kBroadcastRow{.kind = Kind::kBroadcast,
                        .name = "broadcast",
                        .forms = kForms,
                        .collective = HVD_COLLECTIVE_BROADCAST,
                        .travels = Travel::kRoots,
                        .rooted = true,
                        .in_place = true,
                        .bytes = true,
                        .validate = broadcast::validate,
                        .inspect = broadcast::inspect,
                        .decide = broadcast::decide,
                        .misfit = broadcast::misfit,
                        .plan = plan_parts,
                        .parts = broadcast::parts,
                        .exchange = exchange};

}  // namespace hvd::collective
