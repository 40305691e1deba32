// torchrun's flags and variables (PET_*) as options of the library, where they mean the same.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace hvd::cli {

struct Torchrun {
  std::string nnodes, nproc_per_node, master_addr, master_port;  // as given; "": not
};

/// Fills what was not given from PET_NNODES, PET_NPROC_PER_NODE, PET_MASTER_ADDR and PET_MASTER_PORT.
void read_torchrun_environment(Torchrun* given);

/// Options in the order in which they are to be set. join: of an agent, for which slots are all that counts.
/// Throws std::invalid_argument with a message.
std::vector<std::pair<std::string, std::string>> torchrun_options(const Torchrun& given, bool join);

/// How many nodes there may be; 1 if nothing was said.
long most_nodes(const Torchrun& given);

}  // namespace hvd::cli
