// Sentences about backends: which memory and collectives each one serves.
#include "backend/capabilities.h"

#include <fmt/format.h>

#include "numeric/dtype.h"

namespace hvd::backend {
namespace {

bool has(uint64_t bits, int32_t number) { return number >= 0 && number < 64 && (bits >> number & 1) != 0; }

}  // namespace

bool serves(const Description& backend, hvd_memory memory, hvd_dtype dtype, hvd_collective collective) {
  return has(backend.memories, memory) && has(backend.collectives, collective) &&
         (collective == HVD_COLLECTIVE_BARRIER || has(backend.dtypes, dtype));
}

std::string lack_of(const Description& backend, hvd_memory memory, hvd_dtype dtype,
                    hvd_collective collective) {
  if (!has(backend.memories, memory)) return fmt::format("does not take {} memory", memory_name(memory));
  if (!has(backend.collectives, collective)) return fmt::format("has no {}", collective_name(collective));
  if (serves(backend, memory, dtype, collective)) return "";
  return fmt::format("does not support {}", dtype_name(dtype));
}

const char* memory_name(hvd_memory memory) {
  switch (memory) {
    case HVD_MEMORY_HOST: return "host";
    case HVD_MEMORY_CUDA: return "CUDA";
    default: return "unknown";
  }
}

const char* collective_name(hvd_collective collective) {
  switch (collective) {
    case HVD_COLLECTIVE_BROADCAST: return "broadcast";
    case HVD_COLLECTIVE_ALLREDUCE: return "allreduce";
    case HVD_COLLECTIVE_ALLGATHER: return "allgather";
    case HVD_COLLECTIVE_BARRIER: return "barrier";
    case HVD_COLLECTIVE_REDUCESCATTER: return "reducescatter";
    case HVD_COLLECTIVE_ALLTOALL: return "alltoall";
    case HVD_COLLECTIVE_JOIN: return "join";
    default: return "unknown collective";
  }
}

std::string describe_choices(const Instance& instance) {
  std::string text;
  for (const hvd_memory memory : {HVD_MEMORY_HOST, HVD_MEMORY_CUDA}) {
    Choice choice{"none", ""};
    const Status status = instance.choice(memory, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_ALLREDUCE, &choice);
    text += fmt::format("{}{} for {} memory ({})", text.empty() ? "" : ", ", choice.name, memory_name(memory),
                        status.ok() ? choice.reason : status.message);
  }
  return text;
}

bool Instance::supports(hvd_memory memory, hvd_dtype dtype, hvd_collective collective) const {
  return serves(description(), memory, dtype, collective);
}

Status Instance::choice(hvd_memory memory, hvd_dtype dtype, hvd_collective collective,
                        Choice* ret_choice) const {
  const std::string lack = lack_of(description(), memory, dtype, collective);
  if (!lack.empty()) { return {HVD_UNSUPPORTED, fmt::format("backend {} {}", description().name, lack)}; }
  *ret_choice = {description().name, "it is the only one in use"};
  return {};
}

}  // namespace hvd::backend
