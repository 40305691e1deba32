// Broadcast of an object: bytes of the root, whose number the others learn with them.
#include <fmt/format.h>

#include "collective/decision.h"
#include "collective/plan.h"
#include "collective/validation.h"
#include "hvd/direct.h"

namespace hvd::collective {

namespace {

Status validate(const Validation& v) { return v.served(HVD_MEMORY_HOST, HVD_DTYPE_UINT8); }

void decide(Decision& d) {
  Request& root = d.root();
  d.outcome().object_size = root.object_size;
  if (d.alone()) return;
  if (root.object_size > kInlineObject) return d.run(1);
  d.outcome().payload = std::move(root.payload);
  d.own(d.call().root).object_size = root.object_size;  // the root has it
}

Fit misfit(const Answer& a) {
  if (a.rank != a.submission().root) return {nullptr, a.outcome.object_size};
  if (a.outcome.object_size != a.submission().object.size()) return {"the object's size differs", {}};
  return {};
}

Status place(Answer& a, bool) {
  const Submission& s = a.submission();
  const uint64_t size = a.outcome.object_size;
  Operation::Memory memory{nullptr, size};
  if (a.rank != s.root && size > 0) {
    memory.data = allocate(size);
    if (memory.data == nullptr) {
      return Status(HVD_INTERNAL, fmt::format("broadcast_object '{}': no memory for {} bytes", s.name, size));
    }
  }
  a.op.results.push_back({memory.data.get(), HVD_DTYPE_UINT8, {static_cast<int64_t>(size)}});
  a.op.buffers.push_back(std::move(memory));
  return {};
}

Status plan(Plan& plan, Answer& a) {
  if (Status status = place(a, true); !status.ok()) return status;
  void* data = a.rank == a.submission().root ? a.op.submission.object.data() : a.op.buffers[0].data.get();
  plan.add(a.op, HVD_COLLECTIVE_BROADCAST, HVD_DTYPE_UINT8)
      .parts.push_back({data, data, static_cast<size_t>(a.outcome.object_size)});
  return {};
}

constexpr Form kForms[] = {
    {.collective = HVD_COLLECTIVE_BROADCAST_OBJECT, .name = "broadcast_object", .inputs = Given::kAtRoot}};

}  // namespace

extern const Row kBroadcastObjectRow;
const Row kBroadcastObjectRow{.kind = Kind::kBroadcastObject,
                              .name = "broadcast_object",
                              .forms = kForms,
                              .collective = HVD_COLLECTIVE_BROADCAST,
                              .rooted = true,
                              .bytes = true,
                              .object = true,
                              .validate = validate,
                              .decide = decide,
                              .misfit = misfit,
                              .place = place,
                              .plan = plan};

}  // namespace hvd::collective
