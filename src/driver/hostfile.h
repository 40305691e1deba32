// Hosts as host files and batch systems name them. Pure but for reading the file.
#pragma once

#include <string>
#include <vector>

#include "membership/membership.h"

namespace hvd::driver {

/// Lines "host", "host slots=N", "host:N" (max_slots=, max-slots= and sockets are passed over); blank lines
/// and what follows a # do not count. A host that is named again has the slots of all its lines. A host
/// without slots has slots_per_host. Throws Error(HVD_INVALID) that names file and line.
std::vector<membership::HostSlots> parse_hostfile(const std::string& name, const std::string& text,
                                                  int32_t slots_per_host);
std::vector<membership::HostSlots> read_hostfile(const std::string& path, int32_t slots_per_host);

/// The nodes of a Slurm allocation: "node[01-03,7],other" and "2(x3),1" (SLURM_JOB_NODELIST,
/// SLURM_TASKS_PER_NODE). No tasks: slots_per_host each. Throws Error(HVD_INVALID).
std::vector<membership::HostSlots> parse_slurm_nodes(const std::string& nodes, const std::string& tasks,
                                                     int32_t slots_per_host);

}  // namespace hvd::driver
