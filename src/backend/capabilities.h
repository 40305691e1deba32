// What a description serves, and how that is said.
#pragma once

#include <string>

#include "backend/backend.h"

namespace hvd::backend {

bool serves(const Description& backend, hvd_memory memory, hvd_dtype dtype, hvd_collective collective);

/// Why serves() says no: "has no allreduce", "does not support float32". Empty if it says yes.
std::string lack_of(const Description& backend, hvd_memory memory, hvd_dtype dtype,
                    hvd_collective collective);

/// Who serves which memory, and why: one line for people.
std::string describe_choices(const Instance& instance);

const char* memory_name(hvd_memory memory);              // "host"
const char* collective_name(hvd_collective collective);  // "allreduce"

}  // namespace hvd::backend
